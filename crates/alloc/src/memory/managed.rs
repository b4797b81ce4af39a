//! Managed memory beside the rest: the driver's address ranges, weighed among GPUs as others are
//! among nodes, and placed by advice. See [`crate::gpu`].

mod bring;

use super::{check, Memory, State, MAX_BYTES};
use crate::attributes::{Attributes, Binding, ClassId, ClassPlacement, Mismatch, NodeSplit};
use crate::classes::{Classes, Meaning};
use crate::commit::{weigh, Asked, CommitReport, CommitRow, Decided, WHOLE_BELOW};
use crate::error::AllocError;
use crate::gpu::{CudaError, GpuClass, GpuUse, Gpus, Home};
use crate::kernel::AllocatorKernel;
use crate::layout::{self, Nodes, Piece};
use bring::{in_order, Brought};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use terrace_machine::list;
use terrace_types::{Bytes, NodeId};

/// What the driver is asked for is a multiple of this: its own blocks, so that no page, and no
/// advice, is shared with what it gave to others. Addresses cost nothing.
const BLOCK: usize = 2 << 20;
/// The class's number in reports.
const RANK: usize = ClassId::CUDA_MANAGED.0 as usize;

/// One allocation of managed memory. Its nodes are GPUs by number.
#[derive(Debug)]
pub(super) struct Managed {
    /// As it was asked for, its split as it is done.
    wish: Attributes,
    meaning: Meaning,
    pub(super) len: usize,
    /// By offset; those without a GPU are at home with the host. Empty until placed.
    pieces: Vec<Piece>,
    /// Those that were brought to their GPU.
    there: Vec<Piece>,
    /// The driver did not take the advice, for this reason.
    unsaid: Option<CudaError>,
    pending: bool,
}

impl Managed {
    fn asked(&self) -> Vec<NodeId> {
        self.meaning.places.concat()
    }

    fn is_whole(&self) -> bool {
        self.wish.whole.unwrap_or((self.len as u64) < WHOLE_BELOW.get())
    }

    /// Bytes that are at home on `gpu`; of what several serve its share.
    fn on(&self, gpu: NodeId) -> u64 {
        let share = |p: &Piece| (p.range.len() / p.nodes.len()) as u64;
        self.pieces.iter().filter(|p| p.nodes.contains(&gpu)).map(share).sum()
    }

    fn row(&self, address: usize) -> CommitRow {
        let placed: u64 =
            self.pieces.iter().filter(|p| !p.nodes.is_empty()).map(|p| p.range.len() as u64).sum();
        let got = if placed > 0 { vec![(RANK, Bytes(placed))] } else { Vec::new() };
        CommitRow { got, ..CommitRow::new(self.wish.name.clone(), address, self.len, vec![RANK]) }
    }

    /// Where it is at home, and what else there is to say of it.
    fn why(&self, notes: &[String]) -> Cow<'static, str> {
        let mut reported: Vec<String> = self.meaning.notes.iter().chain(notes).cloned().collect();
        let host: usize =
            self.pieces.iter().filter(|p| p.nodes.is_empty()).map(|p| p.range.len()).sum();
        let mut on: BTreeMap<&[NodeId], usize> = BTreeMap::new();
        for piece in self.pieces.iter().filter(|p| !p.nodes.is_empty()) {
            *on.entry(&piece.nodes).or_default() += piece.range.len();
        }
        for (gpus, bytes) in on {
            reported.push(match gpus {
                [gpu] => format!("{} are at home on GPU {gpu}", Bytes(bytes as u64)),
                _ => format!(
                    "{} lie with whichever of GPUs {} touches them",
                    Bytes(bytes as u64),
                    list(gpus)
                ),
            });
        }
        if host > 0 {
            reported.push(format!(
                "{} found no free space there and lie with the host",
                Bytes(host as u64)
            ));
        }
        if let Some(error) = &self.unsaid {
            reported.push(format!("but the driver did not take that: {error}"));
        }
        Cow::Owned(reported.join("; "))
    }
}

impl Memory {
    /// On any kernel and any GPUs.
    ///
    /// # Errors
    /// When managed memory can be placed on none of them.
    pub fn with_gpus(
        kernel: Arc<dyn AllocatorKernel>,
        classes: Classes,
        gpus: Arc<dyn Gpus>,
    ) -> Result<Self, AllocError> {
        let class = GpuClass::from_gpus(gpus).map_err(AllocError::NoCuda)?;
        Ok(Self { gpus: OnceLock::from(Ok(class)), ..Self::with(kernel, classes) })
    }

    /// On the live machine with these GPUs in place of the driver's: with a limit of one's own
    /// before the driver's free memory, say.
    ///
    /// # Errors
    /// When the machine cannot be read or ranked, or managed memory can be placed on no GPU.
    pub fn live_with_gpus(
        variable: &dyn Fn(&str) -> Option<String>,
        gpus: Arc<dyn Gpus>,
    ) -> Result<Self, AllocError> {
        let class = GpuClass::from_gpus(gpus).map_err(AllocError::NoCuda)?;
        Ok(Self { gpus: OnceLock::from(Ok(class)), ..Self::live(variable)? })
    }

    /// On any kernel and no GPUs, for this reason.
    #[must_use]
    pub fn without_gpus(
        kernel: Arc<dyn AllocatorKernel>,
        classes: Classes,
        why: CudaError,
    ) -> Self {
        Self { gpus: OnceLock::from(Err(why)), ..Self::with(kernel, classes) }
    }

    /// GPUs with managed memory on this machine. The first call has the driver loaded.
    ///
    /// # Errors
    /// [`AllocError::NoCuda`], which says why there are none.
    pub fn gpus(&self) -> Result<&GpuClass, AllocError> {
        // Inside, so that a signal handler cannot come upon a driver that is half loaded, and no
        // fork copies it.
        let _inside = self.state()?;
        self.class()
    }

    /// How the GPU with this index is used. The driver sets itself up there for it.
    ///
    /// # Errors
    /// [`AllocError::NoCuda`], [`AllocError::NoSuchGpu`], what the driver said.
    pub fn gpu_use(&self, index: u16) -> Result<GpuUse, AllocError> {
        let state = self.state()?;
        let class = self.class()?;
        let gpu = class.nodes().get(usize::from(index));
        let no_such = AllocError::NoSuchGpu { index, gpus: class.nodes().len() };
        let Some((gpu, device)) = gpu.and_then(|g| Some((*g, class.device(g.0)?))) else {
            return Err(no_such);
        };
        let bound = |m: &Managed| m.on(gpu);
        Ok(GpuUse {
            device: device.clone(),
            number: gpu.0,
            free: class.gpus().free(gpu.0)?,
            bound: Bytes(state.managed.values().map(bound).sum()),
            blocks: state.managed.values().filter(|m| bound(m) > 0).count(),
        })
    }

    fn class(&self) -> Result<&GpuClass, AllocError> {
        self.gpus
            .get_or_init(GpuClass::find)
            .as_ref()
            .map_err(|why| AllocError::NoCuda(why.clone()))
    }

    /// Managed memory on these GPUs, or other memory where that will do.
    pub(super) fn allocate_on_gpus(
        &self,
        size: Bytes,
        wish: Attributes,
        gpus: Vec<ClassPlacement>,
        others: Vec<ClassPlacement>,
    ) -> Result<usize, AllocError> {
        match self.allocate_managed(size, wish.clone(), gpus) {
            Err(error) if may_be_instead(&wish, &others, &error) => {
                let places =
                    if others.is_empty() { vec![ClassPlacement::default()] } else { others };
                let note =
                    format!("CUDA managed memory was asked for, other memory is used: {error}");
                // Weights and the like were for the GPUs.
                let split = if wish.split == NodeSplit::SpillOver {
                    NodeSplit::SpillOver
                } else {
                    NodeSplit::Os
                };
                self.allocate_on_nodes(size, Attributes { places, split, ..wish }, Some(note))
            }
            done => done,
        }
    }

    /// Managed memory as `wish` asks on the GPUs of `places`.
    fn allocate_managed(
        &self,
        size: Bytes,
        mut wish: Attributes,
        places: Vec<ClassPlacement>,
    ) -> Result<usize, AllocError> {
        let mut state = self.state()?;
        let class = self.class()?;
        let mut meaning = class.meaning(&places, &wish, &self.classes, self.kernel.as_ref())?;
        wish.places = places;
        check(&wish)?;
        if size.get() > MAX_BYTES {
            return Err(AllocError::TooLarge { size });
        }
        let len = (size.get().max(1) as usize).next_multiple_of(self.page());
        let asked = meaning.places.concat();
        let now = wish.prefetch || wish.mismatch == Mismatch::Error;
        // Who touches first decides only where several may, and nothing is brought before.
        if wish.split == NodeSplit::Os && (now || asked.len() < 2) {
            wish.split = NodeSplit::SpillOver;
        }
        if wish.split == NodeSplit::SpillOver {
            // One after the other, each for itself.
            meaning.places = asked.iter().map(|gpu| vec![*gpu]).collect();
        }
        let book = asked.first().map_or(0, |gpu| gpu.0);
        let address = class.gpus().allocate(book, Bytes(len.next_multiple_of(BLOCK) as u64))?;
        let immediate = wish.binding == Binding::Immediate;
        let object = Managed {
            wish,
            meaning,
            len,
            pieces: Vec::new(),
            there: Vec::new(),
            unsaid: None,
            pending: !immediate,
        };
        state.managed.insert(address, object);
        if immediate {
            let refused = match self.place_managed(&mut state, &[address]) {
                Ok(report) => report
                    .rows
                    .iter()
                    .any(|r| r.refused)
                    .then(|| self.no_space_on(&state, class, address)),
                Err(error) => Some(error),
            };
            if let Some(error) = refused {
                self.remove_managed(&mut state, address)?;
                return Err(error);
            }
        }
        Ok(address)
    }

    fn no_space_on(&self, state: &State, class: &GpuClass, address: usize) -> AllocError {
        let Some(object) = state.managed.get(&address) else {
            return AllocError::NotOurs { address };
        };
        match self.free_memory_on(state, class, &[address]) {
            Ok(free_memory) => AllocError::NoSpaceOnGpus {
                asked: Bytes(object.len as u64),
                gpus: list(&object.asked()),
                free: Bytes(free_memory.values().sum()),
            },
            Err(error) => error,
        }
    }

    pub(super) fn remove_managed(
        &self,
        state: &mut State,
        address: usize,
    ) -> Result<(), AllocError> {
        self.class()?.gpus().release(address)?;
        state.managed.remove(&address);
        Ok(())
    }

    pub(super) fn describe_managed(&self, address: usize, object: &Managed) -> CommitRow {
        let mut row = object.row(address);
        row.why = if object.pending { Cow::Borrowed("not committed yet") } else { object.why(&[]) };
        row
    }

    /// Space on each GPU that these objects ask for: what is free, and what is not promised to
    /// others. Nobody can tell how much of what was promised is there already.
    fn free_memory_on(
        &self,
        state: &State,
        class: &GpuClass,
        chosen: &[usize],
    ) -> Result<BTreeMap<NodeId, u64>, AllocError> {
        let (mut asked, mut free_memory) = (BTreeSet::new(), BTreeMap::new());
        chosen.iter().filter_map(|a| state.managed.get(a)).for_each(|o| asked.extend(o.asked()));
        for gpu in asked {
            let (mut own, mut others) = (0, 0);
            for (address, object) in &state.managed {
                match chosen.binary_search(address) {
                    Ok(_) => own += object.on(gpu),
                    Err(_) => others += object.on(gpu),
                }
            }
            let total = class.device(gpu.0).map_or(0, |d| d.total.get());
            let free = class.gpus().free(gpu.0)?.get();
            free_memory.insert(gpu, (free + own).min(total.saturating_sub(others)));
        }
        Ok(free_memory)
    }

    /// Those of managed memory that a commit weighs, ascending.
    pub(super) fn managed_in(state: &State, all: bool) -> Vec<usize> {
        let weighed = |o: &Managed| o.wish.binding == Binding::OnCommit && (o.pending || all);
        state.managed.iter().filter(|(_, o)| weighed(o)).map(|(address, _)| *address).collect()
    }

    /// Weighs the managed objects at these addresses (ascending), advises the driver, and brings
    /// what is to be brought.
    pub(super) fn place_managed(
        &self,
        state: &mut State,
        chosen: &[usize],
    ) -> Result<CommitReport, AllocError> {
        let start = self.kernel.now();
        let class = self.class()?;
        let free_memory = self.free_memory_on(state, class, chosen)?;
        let objects = chosen.iter().filter_map(|address| state.managed.get(address));
        let asked: Vec<Asked<'_>> = objects
            .map(|o| Asked {
                wish: &o.wish,
                meaning: &o.meaning,
                len: o.len,
                untouched: o.len as u64,
            })
            .collect();
        // GPUs are in no group of the kernel's that would limit them.
        let mut weighed = weigh(class.as_classes(), &asked, &free_memory, None, self.page())?;
        drop(asked);
        let objects: Vec<&Managed> =
            chosen.iter().filter_map(|address| state.managed.get(address)).collect();
        in_order(&objects, &mut weighed.decided, &free_memory, self.page());
        let decided_at = self.kernel.now();
        let mut report = CommitReport {
            value: weighed.value,
            bound: weighed.bound,
            decided_in: decided_at.since(start),
            ..CommitReport::default()
        };
        for (address, decided) in chosen.iter().zip(weighed.decided) {
            report.rows.push(self.advise(state, class, *address, decided)?);
        }
        report.applied_in = self.kernel.now().since(decided_at);
        Ok(report)
    }

    /// Carries one decision out.
    fn advise(
        &self,
        state: &mut State,
        class: &GpuClass,
        address: usize,
        decided: Decided,
    ) -> Result<CommitRow, AllocError> {
        let start = self.kernel.now();
        let Some(object) = state.managed.get_mut(&address) else {
            return Err(AllocError::NotOurs { address });
        };
        let strict = object.wish.mismatch == Mismatch::Error;
        let (mut refused, mut notes, mut brought) =
            (decided.refused.map(str::to_owned), Vec::new(), Bytes::ZERO);
        if refused.is_none() {
            let done = object.say(class, address, &decided.pieces).and_then(|()| {
                match strict || object.wish.prefetch {
                    true => object.bring(class, address, &decided.pieces),
                    false => Ok(Brought::All(Bytes::ZERO)),
                }
            });
            match done {
                Ok(Brought::All(bytes)) => brought = bytes,
                Ok(Brought::Not(why)) if strict => refused = Some(why),
                Ok(Brought::Not(why)) => notes.push(format!("not brought ahead, for {why}")),
                Err(error) if strict => refused = Some(error.to_string()),
                // It is managed memory all the same; the driver puts it where it is touched.
                Err(error) => object.unsaid = Some(error),
            }
        }
        object.pieces = decided.pieces;
        if let Some(why) = &refused {
            // What was there stays; what was said of it goes. A driver that does not take it back
            // is notified of all the same.
            notes.push(format!("refused: {why}"));
            if let Err(error) = class.forget(&(address..address + object.len)) {
                notes.push(format!("its home could not be taken back: {error}"));
            }
            object.pieces = Vec::new();
        }
        object.pending = refused.is_some();
        let mut row = object.row(address);
        row.refused = refused.is_some();
        row.populated = brought;
        row.why = object.why(&notes);
        row.cost = self.kernel.now().since(start);
        Ok(row)
    }
}

/// Whether other memory will do where managed memory cannot be had: with fallback any, without it
/// what was named besides, and only for want of space.
fn may_be_instead(wish: &Attributes, others: &[ClassPlacement], error: &AllocError) -> bool {
    match error {
        AllocError::NoSpaceOnGpus { .. } | AllocError::Cuda(CudaError::Full { .. }) => {
            wish.mismatch == Mismatch::Fallback || !others.is_empty()
        }
        AllocError::NoCuda(_) | AllocError::Cuda(_) => wish.mismatch == Mismatch::Fallback,
        _ => false,
    }
}
