//! What is said of objects: their rows in reports, where their pages are, and what lacks space.

use super::*;

impl Memory {
    pub(super) fn row(&self, address: usize, object: &Object) -> CommitRow {
        let mut wanted: Vec<usize> = Vec::with_capacity(object.meaning.places.len());
        for class in
            object.meaning.places.iter().flatten().filter_map(|n| self.classes.rank_of_node(*n))
        {
            if !wanted.contains(&class) {
                wanted.push(class);
            }
        }
        CommitRow::new(object.wish.name.clone(), address, object.len, wanted)
    }

    /// Bytes by class: pages that are there where they are, others where they are bound.
    pub(super) fn got(
        &self,
        address: usize,
        pieces: &[Piece],
        runs: &[NodeRun],
    ) -> Vec<(usize, Bytes)> {
        // A handful of classes at most, and mostly one: no map.
        let mut by_class: Vec<(usize, Bytes)> = Vec::with_capacity(1);
        let mut add = |node: Option<NodeId>, bytes: usize| {
            let Some(class) = node.and_then(|n| self.classes.rank_of_node(n)) else { return };
            match by_class.iter_mut().find(|(c, _)| *c == class) {
                Some((_, sum)) => *sum += Bytes(bytes as u64),
                None => by_class.push((class, Bytes(bytes as u64))),
            }
        };
        for piece in pieces {
            let part = address + piece.range.start..address + piece.range.end;
            let mut there = 0;
            for run in overlapping(runs, &part) {
                there += run.range.len();
                add(Some(run.node), run.range.len());
            }
            add(piece.nodes.first().copied(), part.len() - there);
        }
        by_class.retain(|(_, b)| *b > Bytes::ZERO);
        by_class.sort_unstable_by_key(|(c, _)| *c);
        by_class
    }

    /// Before address space is taken: whether a strict wish can be met at all.
    pub(super) fn check_space(
        &self,
        state: &mut State,
        meaning: &Meaning,
        len: usize,
    ) -> Result<(), AllocError> {
        let nodes: Vec<NodeId> = meaning.places.concat();
        let mut free_memory: BTreeMap<NodeId, u64> =
            self.kernel.free_memory().into_iter().map(|(n, b)| (n, b.get())).collect();
        self.less_promises(state, &[], &mut free_memory)?;
        let free: u64 = nodes.iter().filter_map(|n| free_memory.get(n)).sum();
        let fail = |free, limit| {
            Err(AllocError::NoSpace {
                asked: Bytes(len as u64),
                nodes: list(&nodes),
                free: Bytes(free),
                limit,
            })
        };
        if (len as u64) > free {
            return fail(free, "what is free there and not promised");
        }
        match self.kernel.headroom() {
            Some(left) if (len as u64) > left.get() => {
                fail(left.get(), "the memory limit of the process's group")
            }
            _ => Ok(()),
        }
    }

    pub(super) fn no_space(&self, state: &State, row: &CommitRow) -> AllocError {
        let nodes =
            state.objects.get(&row.address).map(|o| o.meaning.places.concat()).unwrap_or_default();
        let free_memory = self.kernel.free_memory();
        let free = free_memory.iter().filter(|(n, _)| nodes.contains(n)).map(|(_, b)| *b).sum();
        AllocError::NoSpace {
            asked: row.size,
            nodes: list(&nodes),
            free,
            limit: "what is free there",
        }
    }

    /// Takes from `free_memory` what is bound to nodes and not there yet, `besides` left out.
    pub(super) fn less_promises(
        &self,
        state: &mut State,
        besides: &[usize],
        free_memory: &mut BTreeMap<NodeId, u64>,
    ) -> Result<(), AllocError> {
        let open: Vec<usize> = state
            .objects
            .iter()
            .filter(|(address, o)| {
                !o.full && !o.pieces.is_empty() && besides.binary_search(address).is_err()
            })
            .map(|(address, _)| *address)
            .collect();
        let resident = self.resident(state, &open)?;
        for address in open {
            let Some(object) = state.objects.get_mut(&address) else { continue };
            let mut all = 0;
            for piece in &object.pieces {
                let part = address + piece.range.start..address + piece.range.end;
                let there: usize = overlapping(&resident, &part).map(|r| r.range.len()).sum();
                all += there;
                let each = (part.len() - there) as u64 / piece.nodes.len().max(1) as u64;
                for node in piece.nodes.iter() {
                    if let Some(free) = free_memory.get_mut(node) {
                        *free = free.saturating_sub(each);
                    }
                }
            }
            // Not asked about again: what was promised was kept.
            object.full = all == object.len;
        }
        Ok(())
    }

    /// Pages of these objects (ascending) that are there. Neighbours are asked for together.
    pub(super) fn resident(
        &self,
        state: &State,
        addresses: &[usize],
    ) -> Result<Vec<NodeRun>, AllocError> {
        let mut spans: Vec<Range<usize>> = Vec::new();
        for (address, object) in state.these(addresses) {
            match spans.last_mut() {
                Some(last) if last.end == address => last.end += object.len,
                _ => spans.push(address..address + object.len),
            }
        }
        let mut runs = Vec::new();
        for span in spans {
            runs.extend(self.kernel.resident(&span)?);
        }
        Ok(runs)
    }
}
