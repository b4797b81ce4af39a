//! What can be wrong with a machine description. Each error is one line: what, where, why, what to
//! try.

use std::fmt;
use terrace_types::{CpuId, NodeId};

/// Where in a text something was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextPosition {
    /// Name of the file, as given by the caller.
    pub file: String,
    /// Line, counted from 1; 0 where no line is meant.
    pub line: usize,
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            write!(f, "{}", self.file)
        } else {
            write!(f, "{}, line {}", self.file, self.line)
        }
    }
}

/// Why a machine description was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// The text is not TOML.
    #[error("machine file {place}: not valid TOML ({why}); compare with a preset's file")]
    Syntax {
        /// Where.
        place: TextPosition,
        /// The parser's words.
        why: String,
    },
    /// A key that this version does not know.
    #[error("machine file {place}: unknown key `{key}`; known here: {known}")]
    UnknownKey {
        /// Where.
        place: TextPosition,
        /// The key, with its table.
        key: String,
        /// Keys that would be accepted.
        known: String,
    },
    /// A key that must be there is not.
    #[error("machine file {place}: `{key}` is missing; add {example}")]
    MissingKey {
        /// Where the table starts.
        place: TextPosition,
        /// The key, with its table.
        key: String,
        /// A line that would do.
        example: &'static str,
    },
    /// A value of the wrong type, unit or size.
    #[error("machine file {place}: `{key}` is {found}; expected {expected}")]
    BadValue {
        /// Where.
        place: TextPosition,
        /// The key, with its table.
        key: String,
        /// What was found, shortened.
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// Two keys say the same thing.
    #[error("machine file {place}: `{key}` and `{other}` both given; keep one")]
    BothGiven {
        /// Where.
        place: TextPosition,
        /// One key.
        key: String,
        /// The other key.
        other: String,
    },
    /// A far store is there in a form that cannot be replaced.
    #[error(
        "machine file {file}: far store `{store}` cannot be put in; remove the one that is there, \
            or give another file"
    )]
    InTheWay {
        /// The file.
        file: String,
        /// The store.
        store: String,
    },
    /// The text is larger than any honest description.
    #[error("{what} {file}: {bytes} bytes, at most {limit} are read; is it the right file?")]
    TooLarge {
        /// Kind of text.
        what: &'static str,
        /// Its name.
        file: String,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Each part is well formed, but together they make no machine.
    #[error("machine {name}: {problem}")]
    Inconsistent {
        /// The machine or file.
        name: String,
        /// What does not fit.
        problem: MachineConflict,
    },
    /// hwloc XML that cannot be used.
    #[error("hwloc XML {place}: {problem}")]
    Xml {
        /// Where.
        place: TextPosition,
        /// What is wrong with it.
        problem: XmlProblem,
    },
    /// No preset of this name.
    #[error("no preset named `{name}`; there are: {known}")]
    NoSuchPreset {
        /// The name asked for.
        name: String,
        /// All names.
        known: String,
    },
}

/// Ways in which parts of a description contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MachineConflict {
    /// The name cannot be shown.
    #[error("its name is empty, longer than 64 bytes or has control characters; rename it")]
    BadName,
    /// Nothing to describe.
    #[error("it has no nodes; add a [[node]]")]
    NoNodes,
    /// Beyond what a page's record can name.
    #[error("node {0} is above 255, the highest node that can be managed; renumber the nodes")]
    NodeTooHigh(NodeId),
    /// Two nodes of one number.
    #[error("node {0} is described twice; give each node its own id")]
    DuplicateNode(NodeId),
    /// One CPU on two nodes.
    #[error("CPU {cpu} is on node {first} and on node {second}; a CPU has one local node")]
    CpuTwice {
        /// The CPU.
        cpu: CpuId,
        /// First node with it.
        first: NodeId,
        /// Second node with it.
        second: NodeId,
    },
    /// More CPUs than any kernel has.
    #[error("CPU {0} is above 8191, the most a Linux kernel numbers; check the list")]
    CpuTooHigh(CpuId),
    /// Nobody accesses.
    #[error("no node has CPUs; give at least one node a `cpus` list")]
    NoCpus,
    /// Nothing to access.
    #[error("no node has memory; give at least one node a capacity above 0")]
    NoMemory,
    /// A link from or to nowhere.
    #[error(
        "a link goes from node {initiator} to node {target}, but node {missing} is not \
        described; add it or drop the link"
    )]
    LinkToNowhere {
        /// From.
        initiator: NodeId,
        /// To.
        target: NodeId,
        /// The end that does not exist.
        missing: NodeId,
    },
    /// A link to a node without memory.
    #[error(
        "a link goes from node {initiator} to node {target}, which has no memory; drop the link"
    )]
    LinkToNoMemory {
        /// From.
        initiator: NodeId,
        /// To.
        target: NodeId,
    },
    /// Two links between the same nodes.
    #[error("the link from node {initiator} to node {target} is described twice; keep one")]
    DuplicateLink {
        /// From.
        initiator: NodeId,
        /// To.
        target: NodeId,
    },
    /// A figure beyond reason.
    #[error("{what} is {found}; expected {expected}")]
    Absurd {
        /// Which figure.
        what: String,
        /// Its value.
        found: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// Two caches of one level.
    #[error("cache level {0} is described twice; keep one")]
    DuplicateCache(u8),
    /// Size, line and ways do not multiply.
    #[error(
        "cache level {0}: its size is not a whole number of sets (line times ways); correct \
        one of the three"
    )]
    CacheGeometry(u8),
}

/// Ways in which hwloc XML is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum XmlProblem {
    /// Not well formed.
    #[error("not well-formed XML ({0}); export it again with lstopo")]
    Malformed(String),
    /// Another kind of XML.
    #[error("its root is <{0}>, not <topology>; export it with `lstopo FILE.xml`")]
    NotTopology(String),
    /// An XML of a version not yet known.
    #[error("format version {0} is not read, only 1 to 3 are; export it with one of these")]
    Version(String),
    /// Elements nested beyond any machine.
    #[error("elements are nested deeper than {0}; no machine is")]
    TooDeep(usize),
    /// More of something than any machine has.
    #[error("more than {limit} {what}; no machine has so many")]
    TooMany {
        /// What.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// Entities could expand without end, so none are read.
    #[error("it declares entities, which are not expanded; export it again with lstopo")]
    Entities,
    /// An attribute that cannot be understood.
    #[error("{element} has {attribute}={found}; expected {expected}")]
    BadAttribute {
        /// Element.
        element: String,
        /// Attribute.
        attribute: String,
        /// Value, shortened.
        found: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// An attribute that must be there is not.
    #[error("{element} lacks {attribute}; export it again with lstopo")]
    MissingAttribute {
        /// Element.
        element: String,
        /// Attribute.
        attribute: &'static str,
    },
}

/// A text shortened for an error line, control characters made visible.
pub(crate) fn shorten(text: &str) -> String {
    const LIMIT: usize = 48;
    let mut out: String = text.chars().take(LIMIT).flat_map(char::escape_debug).collect();
    if text.chars().nth(LIMIT).is_some() {
        out.push_str("...");
    }
    out
}
