//! The syntax tree of vertex programs.
//!
//! All values are 64-bit signed integers; conditions are 0 or not. Arithmetic wraps, and division
//! by zero gives zero, so that no program faults.

mod operations;
mod walk;

pub use operations::{BinaryOperation, Reduction, UnaryOperation};

/// A program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VertexProgram {
    /// Its name.
    pub name: String,
    /// How its vertices are numbered where they are laid out.
    pub numbering: VertexNumbering,
    /// Parameters, globals and properties, in order.
    pub declarations: Vec<Declaration>,
    /// What it does, on one thread but for parallel loops.
    pub body: Vec<Statement>,
    /// What it returns.
    pub results: Vec<ResultItem>,
}

/// How vertices are numbered where they are laid out: which nodelet has which. Native execution
/// does not lay them out, and `self` is always a vertex's number in the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VertexNumbering {
    /// As in the graph.
    #[default]
    Given,
    /// By degree, so that nodelets get vertices of all degrees. The program must not depend on the
    /// order of neighbours, nor use a vertex's number but as `self`.
    ByDegree,
}

/// A parameter, global or property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declaration {
    /// Its line; 0 where no text was read.
    pub line: u32,
    /// What it is.
    pub kind: DeclarationKind,
    /// Its name; of a comment its text.
    pub name: String,
    /// Value at the start: numbers and parameters only.
    pub initial: Expression,
}

/// What a declaration declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeclarationKind {
    /// A number that who runs the program may set.
    Parameter,
    /// A number.
    Global,
    /// A number for each vertex.
    Vertex,
    /// A number for each vertex with a copy on every nodelet; the program must not write it but in
    /// a loop over vertices that does nothing else.
    Replicated,
    /// A number for each edge: its weight in the graph, 1 where the graph has none.
    Edge,
    /// A comment.
    Comment,
}

/// Edges of a vertex.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// To its out-neighbours.
    Out,
    /// From its in-neighbours.
    In,
}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// A number.
    Integer(i64),
    /// Larger than any distance; sums with it do not overflow.
    Infinity,
    /// How many vertices the graph has.
    VertexCount,
    /// How many edges the graph has; an undirected edge counts twice.
    EdgeCount,
    /// A parameter, global or local, or the number of a vertex.
    Name(String),
    /// A property of a vertex or edge.
    Property {
        /// The vertex or edge variable.
        of: String,
        /// The property.
        property: String,
    },
    /// How many out-neighbours or in-neighbours a vertex has.
    Degree {
        /// The vertex variable.
        of: String,
        /// Which of them.
        direction: Direction,
    },
    /// 1 where there is an edge, else 0.
    HasEdge {
        /// Vertex variable where it begins.
        from: String,
        /// Vertex variable where it ends.
        to: String,
    },
    /// An operation on one value.
    Unary {
        /// The operation.
        operation: UnaryOperation,
        /// The value.
        a: Box<Expression>,
    },
    /// An operation on two values.
    Binary {
        /// The operation.
        operation: BinaryOperation,
        /// Left.
        a: Box<Expression>,
        /// Right; not evaluated where `&&` or `||` do not need it.
        b: Box<Expression>,
    },
}

/// Who else may change the target of an update meanwhile, and how the machine does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UpdateMode {
    /// Nobody: a load, an operation and a store. Of a global in a parallel loop: a sum of each
    /// thread's own, added when the thread ends.
    Plain,
    /// Anybody: an atomic that returns a value, which moves the thread to the target.
    Atomic,
    /// Anybody: a packet, which does not move the thread.
    Remote,
}

/// What is assigned to or updated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssignmentTarget {
    /// A local or global.
    Name(String),
    /// A property of a vertex.
    Property {
        /// The vertex variable.
        of: String,
        /// The property.
        property: String,
    },
}

/// Where the threads of a parallel loop begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpawnPlace {
    /// Where the thread is that spawns them; each then migrates to its vertex.
    #[default]
    Here,
    /// A thread on each nodelet spawns those for the vertices that lie there.
    AtData,
}

/// A statement, with its line; 0 where no text was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// Its line.
    pub line: u32,
    /// What it does.
    pub kind: StatementKind,
}

/// What a statement does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatementKind {
    /// `let name = value;`
    Let {
        /// The local.
        name: String,
        /// Its value.
        value: Expression,
    },
    /// `let name = atomic target op= value;`: the value before the update.
    Fetch {
        /// The local.
        name: String,
        /// What is updated.
        target: AssignmentTarget,
        /// How.
        reduction: Reduction,
        /// By what.
        value: Expression,
    },
    /// `target = value;`
    Assign {
        /// What changes.
        target: AssignmentTarget,
        /// Its new value.
        value: Expression,
    },
    /// `[atomic|remote] target op= value;`
    Update {
        /// With whom at once.
        mode: UpdateMode,
        /// What changes.
        target: AssignmentTarget,
        /// How.
        reduction: Reduction,
        /// By what.
        value: Expression,
    },
    /// `if condition { ... } else { ... }`
    If {
        /// The condition.
        condition: Expression,
        /// Where it is not 0.
        then: Vec<Statement>,
        /// Where it is 0.
        otherwise: Vec<Statement>,
    },
    /// `parallel for vertex in vertices { ... }`: a thread for each vertex; all end before the next
    /// statement.
    ParallelFor {
        /// The vertex variable.
        vertex: String,
        /// Where the threads begin.
        spawn: SpawnPlace,
        /// What each does.
        body: Vec<Statement>,
    },
    /// `for vertex in of.neighbors via edge { ... }`
    ForNeighbors {
        /// The vertex variable.
        vertex: String,
        /// The edge variable.
        edge: Option<String>,
        /// Whose neighbours.
        of: String,
        /// Which of them.
        direction: Direction,
        /// What is done for each.
        body: Vec<Statement>,
    },
    /// `while condition limit rounds { ... }`, outside of parallel loops.
    While {
        /// The condition.
        condition: Expression,
        /// More rounds are an error.
        limit: Expression,
        /// What is done.
        body: Vec<Statement>,
    },
    /// A comment.
    Comment(String),
}

/// A value that a program returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultItem {
    /// Its name.
    pub name: String,
    /// The value; of a ratio the numerator.
    pub value: Expression,
    /// `ratio(value, denominator)`: printed as a decimal fraction.
    pub denominator: Option<Expression>,
}

/// What [`Expression::Infinity`] is.
pub const INFINITY: i64 = 1 << 62;
