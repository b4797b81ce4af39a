//! CUDA managed memory: a class beside the ranking, whose indices are GPUs.
//!
//! It is asked for by name ([`ClassId::CUDA_MANAGED`]): what distinguishes it from other memory is
//! who can reach it, not how fast it is. Pages have a home, a GPU or the host; the driver moves
//! them when it must. [`Gpus`] is what is needed of the driver, [`GpuClass`] what a request means
//! on the GPUs there are and which advice gives pages their home; weighing is that of
//! [`crate::commit`]. Where there is no CUDA, the class is absent and the error says why.

#[cfg(test)]
pub(crate) mod fake;

use crate::attributes::{Attributes, ClassId, ClassPlacement, Index, Mismatch, NodeSplit};
use crate::classes::{Classes, Meaning, MemoryClass};
use crate::error::AllocError;
use crate::kernel::AllocatorKernel;
use std::fmt::{self, Debug};
use std::ops::Range;
use std::sync::Arc;
use terrace_sys::{Cuda, Root};
use terrace_types::{Bytes, NodeId};

pub use terrace_sys::{CudaDevice as Device, CudaError, CudaHome as Home};

/// What is needed of the driver, so that tests can stand in for it with any number of GPUs. GPUs
/// are numbered in the driver's order.
pub trait Gpus: Debug + Send + Sync {
    /// GPUs that this process may use.
    fn devices(&self) -> &[Device];
    /// Free memory of a GPU, all processes counted.
    ///
    /// # Errors
    /// What the driver said.
    fn free(&self, gpu: u16) -> Result<Bytes, CudaError>;
    /// New managed memory without a home, booked with `gpu`. The driver does not promise zeros.
    ///
    /// # Errors
    /// What the driver said.
    fn allocate(&self, gpu: u16, len: Bytes) -> Result<usize, CudaError>;
    /// Gives it back.
    ///
    /// # Errors
    /// What the driver said.
    fn release(&self, address: usize) -> Result<(), CudaError>;
    /// The home of the pages of `part`; `None`: with whoever touches them.
    ///
    /// # Errors
    /// What the driver said.
    fn prefer(&self, part: &Range<usize>, home: Option<Home>) -> Result<(), CudaError>;
    /// Whether `from` keeps a way to the pages of `part` wherever they are.
    ///
    /// # Errors
    /// What the driver said.
    fn reach(&self, part: &Range<usize>, from: Home, on: bool) -> Result<(), CudaError>;
    /// Brings the pages of `part` to a home, and waits for them.
    ///
    /// # Errors
    /// What the driver said.
    fn bring(&self, part: &Range<usize>, to: Home) -> Result<(), CudaError>;
}

impl Gpus for Cuda {
    fn devices(&self) -> &[Device] {
        Self::devices(self)
    }

    fn free(&self, gpu: u16) -> Result<Bytes, CudaError> {
        Self::free(self, gpu)
    }

    fn allocate(&self, gpu: u16, len: Bytes) -> Result<usize, CudaError> {
        Self::allocate(self, gpu, len)
    }

    fn release(&self, address: usize) -> Result<(), CudaError> {
        Self::release(self, address)
    }

    fn prefer(&self, part: &Range<usize>, home: Option<Home>) -> Result<(), CudaError> {
        Self::prefer(self, part, home)
    }

    fn reach(&self, part: &Range<usize>, from: Home, on: bool) -> Result<(), CudaError> {
        Self::reach(self, part, from, on)
    }

    fn bring(&self, part: &Range<usize>, to: Home) -> Result<(), CudaError> {
        Self::bring(self, part, to)
    }
}

/// The class on this machine.
#[derive(Debug)]
pub struct GpuClass {
    gpus: Arc<dyn Gpus>,
    /// Numbers of its GPUs as nodes, so that they are weighed as nodes are; the index of a GPU is
    /// its position.
    class: [MemoryClass; 1],
    /// What was left out, one sentence each.
    pub notes: Vec<String>,
}

/// What gives the pages of a part their home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Advice {
    /// `None`: with whoever touches them.
    pub home: Option<Home>,
    /// Who keeps a way to them.
    pub reach: Vec<Home>,
}

/// How a GPU is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuUse {
    /// The GPU.
    pub device: Device,
    /// Its number in the driver's order.
    pub number: u16,
    /// Free memory, all processes counted.
    pub free: Bytes,
    /// Bytes of this handle that are at home there.
    pub bound: Bytes,
    /// Allocations that these are of.
    pub blocks: usize,
}

impl GpuClass {
    /// That of the live machine.
    ///
    /// # Errors
    /// Why there is none.
    pub fn find() -> Result<Self, CudaError> {
        Self::from_gpus(Arc::new(Cuda::load(&Root::live())?))
    }

    /// That of these GPUs.
    ///
    /// # Errors
    /// When memory can be placed on none of them.
    pub fn from_gpus(gpus: Arc<dyn Gpus>) -> Result<Self, CudaError> {
        let mut nodes = Vec::new();
        let mut notes = Vec::new();
        for (number, device) in gpus.devices().iter().enumerate() {
            match device.places {
                true => nodes.push(NodeId(number as u16)),
                false => notes.push(format!(
                    "GPU {number} ({}) is left out: managed memory cannot be placed on it (no \
                        concurrent managed access).",
                    device.name
                )),
            }
        }
        if nodes.is_empty() {
            return Err(CudaError::CannotPlace { gpus: gpus.devices().len() });
        }
        Ok(Self { gpus, class: [MemoryClass { nodes, read_gain: 1.0, write_gain: 1.0 }], notes })
    }

    /// Numbers of its GPUs; the index of a GPU is its position.
    pub fn members(&self) -> impl Iterator<Item = u16> + '_ {
        self.nodes().iter().map(|n| n.0)
    }

    /// The GPU of this number.
    #[must_use]
    pub fn device(&self, number: u16) -> Option<&Device> {
        self.gpus.devices().get(usize::from(number))
    }

    pub(crate) fn nodes(&self) -> &[NodeId] {
        &self.class[0].nodes
    }

    pub(crate) fn as_classes(&self) -> &[MemoryClass] {
        &self.class
    }

    pub(crate) fn gpus(&self) -> &dyn Gpus {
        self.gpus.as_ref()
    }

    /// Which GPUs `places` mean to the calling thread.
    pub(crate) fn meaning(
        &self,
        places: &[ClassPlacement],
        wish: &Attributes,
        classes: &Classes,
        kernel: &dyn AllocatorKernel,
    ) -> Result<Meaning, AllocError> {
        let strict = wish.mismatch == Mismatch::Error;
        let mut meaning = Meaning::default();
        for place in places {
            let mut found = match &place.index {
                Index::All => self.nodes().to_vec(),
                Index::These(these) => self.these(these, strict, &mut meaning.notes)?,
                Index::Local => self.local(strict, classes, kernel, &mut meaning.notes)?,
            };
            found.retain(|n| !meaning.places.iter().flatten().any(|m| m == n));
            meaning.places.push(found);
        }
        Ok(meaning)
    }

    fn these(
        &self,
        indices: &[u16],
        strict: bool,
        notes: &mut Vec<String>,
    ) -> Result<Vec<NodeId>, AllocError> {
        let mut found = Vec::new();
        for index in indices {
            match self.nodes().get(usize::from(*index)) {
                Some(gpu) if !found.contains(gpu) => found.push(*gpu),
                Some(_) => {}
                None if strict => {
                    return Err(AllocError::NoSuchGpu { index: *index, gpus: self.nodes().len() })
                }
                None => notes.push(format!("CUDA managed memory has no index {index}: left out")),
            }
        }
        if found.is_empty() {
            notes.push("all GPUs are used".to_owned());
            return Ok(self.nodes().to_vec());
        }
        Ok(found)
    }

    /// GPUs attached to the calling thread's node; else to its socket. One on another socket is
    /// never among them.
    fn local(
        &self,
        strict: bool,
        classes: &Classes,
        kernel: &dyn AllocatorKernel,
        notes: &mut Vec<String>,
    ) -> Result<Vec<NodeId>, AllocError> {
        let near = |initiator: NodeId| {
            let at = |beside: &dyn Fn(NodeId) -> bool| -> Vec<NodeId> {
                let node = |gpu: &NodeId| {
                    self.device(gpu.0).and_then(|d| d.node).or(classes.only_initiator())
                };
                self.nodes().iter().copied().filter(|gpu| node(gpu).is_some_and(beside)).collect()
            };
            let own = at(&|node| node == initiator);
            match own.is_empty() {
                true => at(&|node| classes.on_one_socket(node, initiator)),
                false => own,
            }
        };
        let Some(initiator) = classes.initiator(&near, strict, kernel, notes)? else {
            return Ok(self.nodes().to_vec());
        };
        let found = near(initiator);
        if found.is_empty() {
            if strict {
                return Err(AllocError::NoGpuNear { initiator: initiator.0 });
            }
            notes.push(format!("no GPU is known to be near node {initiator}: all are used"));
            return Ok(self.nodes().to_vec());
        }
        Ok(found)
    }

    /// What gives pages their home on `gpus`: on one, CPUs and its peers keep a way to them; on
    /// several, they lie with whoever touches them; on none, with the host, and the GPUs that were
    /// asked for keep a way.
    pub(crate) fn advice(&self, gpus: &[NodeId], asked: &[NodeId]) -> Advice {
        match gpus {
            [] => Advice {
                home: Some(Home::Host),
                reach: asked.iter().map(|n| Home::Gpu(n.0)).collect(),
            },
            [one] => {
                let peers = self.device(one.0).map(|d| d.peers.as_slice()).unwrap_or_default();
                let peers = peers
                    .iter()
                    .filter(|p| self.nodes().contains(&NodeId(**p)))
                    .map(|p| Home::Gpu(*p));
                Advice {
                    home: Some(Home::Gpu(one.0)),
                    reach: std::iter::once(Home::Host).chain(peers).collect(),
                }
            }
            _ => Advice { home: None, reach: Vec::new() },
        }
    }

    /// Gives the pages of `part` the home that `advice` says.
    pub(crate) fn place(&self, part: &Range<usize>, advice: &Advice) -> Result<(), CudaError> {
        self.gpus.prefer(part, advice.home)?;
        advice.reach.iter().try_for_each(|from| self.gpus.reach(part, *from, true))
    }

    /// Takes all advice from `part`, for whichever GPU it was.
    pub(crate) fn forget(&self, part: &Range<usize>) -> Result<(), CudaError> {
        self.gpus.prefer(part, None)?;
        let all = std::iter::once(Home::Host).chain(self.members().map(Home::Gpu));
        all.into_iter().try_for_each(|from| self.gpus.reach(part, from, false))
    }
}

/// For people: its GPUs, one line each.
impl fmt::Display for GpuClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, number) in self.members().enumerate() {
            let Some(device) = self.device(number) else { continue };
            let gap = if index > 0 { "; " } else { "" };
            write!(f, "{gap}index {index}: {}, {}", device.name, device.total)?;
            if let Some(node) = device.node {
                write!(f, ", at node {node}")?;
            }
            let peers: Vec<String> = device.peers.iter().map(ToString::to_string).collect();
            if !peers.is_empty() {
                write!(f, ", reached by GPU {}", peers.join(", "))?;
            }
        }
        self.notes.iter().try_for_each(|note| write!(f, "; {note}"))
    }
}

/// Places of managed memory, and the others.
pub(crate) type Parted = (Vec<ClassPlacement>, Vec<ClassPlacement>);

/// The places of `wish` that are managed memory, and the others; `None` where none is.
///
/// # Errors
/// Managed memory after other classes, or divided with them: one address range has one owner.
pub(crate) fn part(wish: &Attributes) -> Result<Option<Parted>, AllocError> {
    let managed = |p: &&ClassPlacement| p.class == ClassId::CUDA_MANAGED;
    let first = wish.places.iter().take_while(managed).count();
    let all = wish.places.iter().filter(managed).count();
    if all == 0 {
        return Ok(None);
    }
    let (gpus, others) = wish.places.split_at(first);
    if first < all {
        return Err(AllocError::BadSplit {
            what: "name CUDA managed memory before other classes; it falls back to them",
        });
    }
    if !others.is_empty() && !matches!(wish.split, NodeSplit::Os | NodeSplit::SpillOver) {
        return Err(AllocError::BadSplit {
            what: "managed memory is divided among GPUs only; name no other class with it",
        });
    }
    Ok(Some((gpus.to_vec(), others.to_vec())))
}

#[cfg(test)]
mod tests;
