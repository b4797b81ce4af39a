//! Managed memory: the driver's advice on the preferred location of pages, and their migration.

use super::*;

/// What became of pages that were to migrate.
pub(super) enum Brought {
    /// They are there: so many bytes that were not before.
    All(Bytes),
    /// None was, for this reason.
    Not(String),
}

impl Managed {
    /// Advises the driver of the preferred location of each piece, where that changed.
    pub(super) fn say(
        &mut self,
        class: &GpuClass,
        address: usize,
        pieces: &[Piece],
    ) -> Result<(), CudaError> {
        let before = self.unsaid.take();
        if before.is_none() && self.pieces == pieces {
            return Ok(());
        }
        if !self.pieces.is_empty() {
            class.forget(&(address..address + self.len))?;
        }
        let asked = self.asked();
        pieces
            .iter()
            .try_for_each(|p| class.place(&at(address, p), &class.advice(&p.nodes, &asked)))
    }

    /// Brings each piece home, GPUs' only where all that is missing there has space: a driver
    /// without space pushes out what was brought before.
    pub(super) fn bring(
        &mut self,
        class: &GpuClass,
        address: usize,
        pieces: &[Piece],
    ) -> Result<Brought, CudaError> {
        let gpus = class.gpus();
        for piece in pieces.iter().filter(|p| p.nodes.is_empty() && !self.there.is_empty()) {
            gpus.bring(&at(address, piece), Home::Host)?;
        }
        let leaves =
            |there: &Piece| !pieces.iter().any(|p| p.nodes.is_empty() && overlap(p, there) > 0);
        self.there.retain(leaves);
        let missing = |piece: &Piece| {
            let there = self
                .there
                .iter()
                .filter(|t| t.nodes == piece.nodes)
                .map(|t| overlap(t, piece))
                .sum::<usize>();
            (piece.range.len() - there) as u64
        };
        let mut needs: BTreeMap<u16, u64> = BTreeMap::new();
        for piece in pieces {
            if let [gpu] = *piece.nodes {
                *needs.entry(gpu.0).or_default() += missing(piece);
            }
        }
        for (gpu, need) in &needs {
            let free = gpus.free(*gpu)?;
            if *need > free.get() {
                return Ok(Brought::Not(format!(
                    "GPU {gpu} has {free} free and {} are missing",
                    Bytes(*need)
                )));
            }
        }
        for piece in pieces.iter().filter(|p| missing(p) > 0) {
            if let [gpu] = *piece.nodes {
                gpus.bring(&at(address, piece), Home::Gpu(gpu.0))?;
            }
        }
        self.there = pieces.iter().filter(|p| p.nodes.len() == 1).cloned().collect();
        Ok(Brought::All(Bytes(needs.values().sum())))
    }
}

pub(super) fn at(address: usize, piece: &Piece) -> Range<usize> {
    address + piece.range.start..address + piece.range.end
}

/// Bytes that both have.
pub(super) fn overlap(a: &Piece, b: &Piece) -> usize {
    a.range.end.min(b.range.end).saturating_sub(a.range.start.max(b.range.start))
}

/// What spills over fills its GPUs in the order it named them. To the solver they are worth the
/// same, so it may have put bytes on any: each has as many as it decided, poured anew, the
/// worthiest first. Where that does not come out even, its decision stands.
pub(super) fn in_order(
    objects: &[&Managed],
    decided: &mut [Decided],
    free_memory: &BTreeMap<NodeId, u64>,
    page: usize,
) {
    let mut free_memory = free_memory.clone();
    let mut spills: Vec<usize> = Vec::new();
    for (at, (object, decided)) in objects.iter().zip(decided.iter()).enumerate() {
        let placed = decided.pieces.iter().any(|p| !p.nodes.is_empty());
        if placed && object.wish.split == NodeSplit::SpillOver && object.meaning.places.len() > 1 {
            spills.push(at);
            continue;
        }
        for piece in decided.pieces.iter().filter(|p| !p.nodes.is_empty()) {
            let each = (piece.range.len() / piece.nodes.len()) as u64;
            for gpu in piece.nodes.iter() {
                free_memory.entry(*gpu).and_modify(|r| *r = r.saturating_sub(each));
            }
        }
    }
    spills.sort_by_key(|at| std::cmp::Reverse(objects[*at].wish.priority));
    let mut poured: Vec<(usize, Vec<Piece>)> = Vec::new();
    for at in spills {
        let (object, pieces) = (objects[at], &decided[at].pieces);
        let mut left: usize =
            pieces.iter().filter(|p| !p.nodes.is_empty()).map(|p| p.range.len()).sum();
        let undivided = pieces.len() == 1;
        let mut amounts: Vec<(Nodes, usize)> = Vec::new();
        for gpu in object.asked() {
            let free = free_memory.get(&gpu).map_or(0, |r| *r as usize / page * page);
            let here =
                if undivided && object.is_whole() && free < left { 0 } else { free.min(left) };
            if here > 0 {
                amounts.push((Nodes::from([gpu]), here));
                free_memory.entry(gpu).and_modify(|r| *r -= here as u64);
                left -= here;
            }
        }
        if left > 0 {
            return;
        }
        let host: usize = pieces.iter().filter(|p| p.nodes.is_empty()).map(|p| p.range.len()).sum();
        if host > 0 {
            amounts.push((Nodes::from([]), host));
        }
        poured.push((at, layout::runs(&amounts, false, page)));
    }
    for (at, pieces) in poured {
        decided[at].pieces = pieces;
    }
}
