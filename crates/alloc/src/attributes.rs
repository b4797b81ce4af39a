//! What an allocation can ask for.

/// Which nodes of a class.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Index {
    /// All of them.
    #[default]
    All,
    /// Those of the caller's initiator: the node whose CPUs the calling thread is bound to.
    Local,
    /// These, counted from 0 in the order of node numbers.
    These(Vec<u16>),
}

/// A class of memory: 0 is the best of the machine's ranking, -1 the last, -2 the one before it.
/// Classes beside the ranking have numbers that no ranking reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ClassId(pub i16);

impl ClassId {
    /// The first of the ranking.
    pub const FASTEST: Self = Self(0);
    /// The last of the ranking.
    pub const SLOWEST: Self = Self(-1);
    /// CUDA managed memory, which CPUs and GPUs reach at one address; its indices are GPUs
    /// ([`crate::gpu`]).
    pub const CUDA_MANAGED: Self = Self(0x4000);
}

/// A class, and which nodes of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ClassPlacement {
    /// The class.
    pub class: ClassId,
    /// Its nodes.
    pub index: Index,
}

/// How the bytes are divided among the nodes of all places, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum NodeSplit {
    /// The kernel chooses the page's node, near the thread that first touches it.
    #[default]
    Os,
    /// As much as there is space for in the first place, then in the next.
    SpillOver,
    /// Contiguous parts of equal size, one a node.
    Equal,
    /// Runs of so many base pages, one node after the other in turn.
    Chunk(u64),
    /// Contiguous parts, one a place, in these proportions; within a place equal parts, one a node.
    Weighted(Vec<u32>),
}

/// When memory gets its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Binding {
    /// At once; the priority plays no part.
    #[default]
    Immediate,
    /// When [`crate::memory::Memory::commit`] is called, weighed together with all others.
    OnCommit,
}

/// What happens when a wish cannot be met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mismatch {
    /// It is an error, there and then. What is accepted is reserved: every page is there, in its
    /// class.
    Error,
    /// Other memory will do; the report says which.
    #[default]
    Fallback,
}

/// Size of the pages behind the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum PageSize {
    /// Huge pages for 2 MiB and more; for 8 MiB a node and more where several nodes serve a class.
    #[default]
    Auto,
    /// Base pages.
    Base,
    /// Huge pages, where the kernel has them.
    Huge,
}

/// How long it will be kept; objects of like lifetime lie together, so that freed space stays in
/// one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Lifetime {
    /// Not reported.
    #[default]
    Unknown,
    /// Freed soon.
    Short,
    /// Kept until the end.
    Long,
}

/// All wishes. The default asks for the fastest class, with fallback, at once.
#[derive(Debug, Clone, PartialEq)]
pub struct Attributes {
    /// Classes, the preferred first.
    pub places: Vec<ClassPlacement>,
    /// How it is divided among them.
    pub split: NodeSplit,
    /// When it is bound.
    pub binding: Binding,
    /// What happens when there is no such memory.
    pub mismatch: Mismatch,
    /// Weight in a commit.
    pub priority: u32,
    /// Expected reads of each byte, in any unit that is the same for all objects.
    pub reads: f64,
    /// Expected writes of each byte, in the same unit.
    pub writes: f64,
    /// Pages behind it.
    pub page_size: PageSize,
    /// How long it is kept.
    pub lifetime: Lifetime,
    /// Whether it lies in one class whole; left out, objects below 2 MiB do.
    pub whole: Option<bool>,
    /// CUDA managed memory: pages are brought to their home when they are bound, not by whoever
    /// touches them first. Other memory takes no notice.
    pub prefetch: bool,
    /// What reports call it.
    pub name: String,
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            places: vec![ClassPlacement::default()],
            split: NodeSplit::Os,
            binding: Binding::Immediate,
            mismatch: Mismatch::Fallback,
            priority: 1,
            reads: 1.0,
            writes: 1.0,
            page_size: PageSize::Auto,
            lifetime: Lifetime::Unknown,
            whole: None,
            prefetch: false,
            name: String::new(),
        }
    }
}

impl Attributes {
    /// One class, all of its nodes.
    #[must_use]
    pub fn in_class(class: ClassId) -> Self {
        Self { places: vec![ClassPlacement { class, index: Index::All }], ..Self::default() }
    }
}
