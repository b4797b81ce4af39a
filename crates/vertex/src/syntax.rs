//! The syntax tree of vertex programs.
//!
//! All values are 64-bit signed integers; conditions are 0 or not. Arithmetic wraps, and division
//! by zero gives zero, so that no program faults.

/// A program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VertexProgram {
    /// Its name.
    pub name: String,
    /// Parameters, globals and properties, in order.
    pub declarations: Vec<Declaration>,
    /// What it does, on one thread but for parallel loops.
    pub body: Vec<Statement>,
    /// What it returns.
    pub results: Vec<ResultItem>,
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

/// An operation on one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnaryOperation {
    /// `-a`.
    Negate,
    /// `!a`: 1 for 0, else 0.
    Not,
}

/// An operation on two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BinaryOperation {
    /// `a + b`.
    Add,
    /// `a - b`.
    Subtract,
    /// `a * b`.
    Multiply,
    /// `a / b`, towards zero.
    Divide,
    /// `a % b`.
    Remainder,
    /// `a & b`.
    BitAnd,
    /// `a | b`.
    BitOr,
    /// `a ^ b`.
    BitXor,
    /// `min(a, b)`.
    Minimum,
    /// `max(a, b)`.
    Maximum,
    /// `a == b`.
    Equal,
    /// `a != b`.
    NotEqual,
    /// `a < b`.
    Less,
    /// `a <= b`.
    LessOrEqual,
    /// `a > b`.
    Greater,
    /// `a >= b`.
    GreaterOrEqual,
    /// `a && b`.
    And,
    /// `a || b`.
    Or,
}

/// How an update changes its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// `+=`.
    Add,
    /// `min=`.
    Minimum,
    /// `max=`.
    Maximum,
    /// `&=`.
    BitAnd,
    /// `|=`.
    BitOr,
    /// `^=`.
    BitXor,
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

impl Reduction {
    /// The value that changes nothing.
    #[must_use]
    pub const fn identity(self) -> i64 {
        match self {
            Self::Add | Self::BitOr | Self::BitXor => 0,
            Self::Minimum => i64::MAX,
            Self::Maximum => i64::MIN,
            Self::BitAnd => -1,
        }
    }

    /// Its value for two operands.
    #[must_use]
    pub fn apply(self, a: i64, b: i64) -> i64 {
        match self {
            Self::Add => a.wrapping_add(b),
            Self::Minimum => a.min(b),
            Self::Maximum => a.max(b),
            Self::BitAnd => a & b,
            Self::BitOr => a | b,
            Self::BitXor => a ^ b,
        }
    }

    /// As it is written.
    #[must_use]
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+=",
            Self::Minimum => "min=",
            Self::Maximum => "max=",
            Self::BitAnd => "&=",
            Self::BitOr => "|=",
            Self::BitXor => "^=",
        }
    }
}

impl BinaryOperation {
    /// Its value for two operands; `&&` and `||` with both.
    #[must_use]
    pub fn apply(self, a: i64, b: i64) -> i64 {
        match self {
            Self::Add => a.wrapping_add(b),
            Self::Subtract => a.wrapping_sub(b),
            Self::Multiply => a.wrapping_mul(b),
            Self::Divide if b == 0 => 0,
            Self::Divide => a.wrapping_div(b),
            Self::Remainder if b == 0 => 0,
            Self::Remainder => a.wrapping_rem(b),
            Self::BitAnd => a & b,
            Self::BitOr => a | b,
            Self::BitXor => a ^ b,
            Self::Minimum => a.min(b),
            Self::Maximum => a.max(b),
            Self::Equal => i64::from(a == b),
            Self::NotEqual => i64::from(a != b),
            Self::Less => i64::from(a < b),
            Self::LessOrEqual => i64::from(a <= b),
            Self::Greater => i64::from(a > b),
            Self::GreaterOrEqual => i64::from(a >= b),
            Self::And => i64::from(a != 0 && b != 0),
            Self::Or => i64::from(a != 0 || b != 0),
        }
    }

    /// As it is written, and how tightly it binds: more binds tighter.
    #[must_use]
    pub const fn symbol(self) -> (&'static str, u8) {
        match self {
            Self::Or => ("||", 1),
            Self::And => ("&&", 2),
            Self::Equal => ("==", 3),
            Self::NotEqual => ("!=", 3),
            Self::Less => ("<", 3),
            Self::LessOrEqual => ("<=", 3),
            Self::Greater => (">", 3),
            Self::GreaterOrEqual => (">=", 3),
            Self::BitOr => ("|", 4),
            Self::BitXor => ("^", 5),
            Self::BitAnd => ("&", 6),
            Self::Add => ("+", 7),
            Self::Subtract => ("-", 7),
            Self::Multiply => ("*", 8),
            Self::Divide => ("/", 8),
            Self::Remainder => ("%", 8),
            Self::Minimum => ("min", 9),
            Self::Maximum => ("max", 9),
        }
    }
}

/// What [`Expression::Infinity`] is.
pub const INFINITY: i64 = 1 << 62;

impl Expression {
    /// Calls `visit` with this expression and all parts of it.
    pub fn visit(&self, visit: &mut impl FnMut(&Expression)) {
        visit(self);
        match self {
            Self::Unary { a, .. } => a.visit(visit),
            Self::Binary { a, b, .. } => {
                a.visit(visit);
                b.visit(visit);
            }
            _ => {}
        }
    }

    /// Calls `change` with this expression and all parts of it, parts first.
    pub fn change(&mut self, change: &mut impl FnMut(&mut Expression)) {
        match self {
            Self::Unary { a, .. } => a.change(change),
            Self::Binary { a, b, .. } => {
                a.change(change);
                b.change(change);
            }
            _ => {}
        }
        change(self);
    }

    /// Names of variables in it.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        fn collect<'a>(expression: &'a Expression, names: &mut Vec<&'a str>) {
            match expression {
                Expression::Name(name) => names.push(name),
                Expression::Property { of, .. } | Expression::Degree { of, .. } => names.push(of),
                Expression::HasEdge { from, to } => names.extend([from.as_str(), to.as_str()]),
                Expression::Unary { a, .. } => collect(a, names),
                Expression::Binary { a, b, .. } => {
                    collect(a, names);
                    collect(b, names);
                }
                _ => {}
            }
        }
        let mut names = Vec::new();
        collect(self, &mut names);
        names
    }
}

impl Statement {
    /// Blocks within it.
    #[must_use]
    pub fn blocks(&self) -> Vec<&[Statement]> {
        match &self.kind {
            StatementKind::If { then, otherwise, .. } => vec![then, otherwise],
            StatementKind::ParallelFor { body, .. }
            | StatementKind::ForNeighbors { body, .. }
            | StatementKind::While { body, .. } => vec![body],
            _ => Vec::new(),
        }
    }

    /// Blocks within it, to change.
    pub fn blocks_mut(&mut self) -> Vec<&mut Vec<Statement>> {
        match &mut self.kind {
            StatementKind::If { then, otherwise, .. } => vec![then, otherwise],
            StatementKind::ParallelFor { body, .. }
            | StatementKind::ForNeighbors { body, .. }
            | StatementKind::While { body, .. } => vec![body],
            _ => Vec::new(),
        }
    }

    /// Expressions of the statement itself, without those of blocks within it.
    #[must_use]
    pub fn expressions(&self) -> Vec<&Expression> {
        match &self.kind {
            StatementKind::Let { value, .. }
            | StatementKind::Fetch { value, .. }
            | StatementKind::Assign { value, .. }
            | StatementKind::Update { value, .. } => vec![value],
            StatementKind::If { condition, .. } => vec![condition],
            StatementKind::While { condition, limit, .. } => vec![condition, limit],
            _ => Vec::new(),
        }
    }

    /// The same, to change.
    pub fn expressions_mut(&mut self) -> Vec<&mut Expression> {
        match &mut self.kind {
            StatementKind::Let { value, .. }
            | StatementKind::Fetch { value, .. }
            | StatementKind::Assign { value, .. }
            | StatementKind::Update { value, .. } => vec![value],
            StatementKind::If { condition, .. } => vec![condition],
            StatementKind::While { condition, limit, .. } => vec![condition, limit],
            _ => Vec::new(),
        }
    }

    /// What it assigns or updates.
    #[must_use]
    pub fn target(&self) -> Option<&AssignmentTarget> {
        match &self.kind {
            StatementKind::Fetch { target, .. }
            | StatementKind::Assign { target, .. }
            | StatementKind::Update { target, .. } => Some(target),
            _ => None,
        }
    }

    /// Calls `visit` with this statement and all within it, in order.
    pub fn visit<'a>(&'a self, visit: &mut impl FnMut(&'a Statement)) {
        visit(self);
        for block in self.blocks() {
            block.iter().for_each(|statement| statement.visit(visit));
        }
    }

    /// Calls `change` with this statement and all within it, inner ones first.
    pub fn change(&mut self, change: &mut impl FnMut(&mut Statement)) {
        for block in self.blocks_mut() {
            block.iter_mut().for_each(|statement| statement.change(change));
        }
        change(self);
    }
}

impl VertexProgram {
    /// A declaration by its name.
    #[must_use]
    pub fn declaration(&self, name: &str) -> Option<&Declaration> {
        let named = |d: &&Declaration| d.name == name && d.kind != DeclarationKind::Comment;
        self.declarations.iter().find(named)
    }

    /// Names of declarations of a kind, in order.
    pub fn declared(&self, kind: DeclarationKind) -> impl Iterator<Item = &Declaration> {
        self.declarations.iter().filter(move |d| d.kind == kind)
    }

    /// Calls `visit` with all statements.
    pub fn visit<'a>(&'a self, visit: &mut impl FnMut(&'a Statement)) {
        self.body.iter().for_each(|statement| statement.visit(visit));
    }

    /// Removes comments, which passes do not keep.
    pub fn strip_comments(&mut self) {
        fn strip(block: &mut Vec<Statement>) {
            block.retain(|s| !matches!(s.kind, StatementKind::Comment(_)));
            block.iter_mut().flat_map(Statement::blocks_mut).for_each(strip);
        }
        self.declarations.retain(|d| d.kind != DeclarationKind::Comment);
        strip(&mut self.body);
    }
}
