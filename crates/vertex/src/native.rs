//! Runs programs on host threads, straight from the syntax tree. It is what other ways to run a
//! program are compared with, and reports accesses for recordings.

mod lower;
mod run;

use crate::graph::Graph;
use crate::syntax::{Direction, VertexProgram};
use crate::VertexError;
pub(crate) use lower::vertex_properties;

/// An array that a program accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObservedArray {
    /// Globals, in the order of their declarations.
    Globals,
    /// A vertex property, by the order of their declarations.
    Property(u16),
    /// Where the lists of a direction begin; an undirected graph has one direction.
    Offsets(Direction),
    /// Lists of neighbours.
    Neighbors(Direction),
    /// Weights of edges.
    Weights(Direction),
}

/// Whether an access changes the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VertexAccess {
    /// It reads.
    Load,
    /// It writes.
    Store,
}

/// Sees every access of a run.
pub trait VertexObserver {
    /// Whether it wants to; `false` lets the compiler drop the calls.
    const ACTIVE: bool = true;
    /// A word of an array is accessed.
    fn access(&mut self, array: ObservedArray, index: u64, access: VertexAccess);
    /// The next accesses belong to this vertex's thread.
    fn begin_thread(&mut self, _vertex: u32) {}
    /// All threads wait for each other: before and after the threads of a parallel loop.
    fn synchronize(&mut self) {}
}

/// Sees nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl VertexObserver for NoObserver {
    const ACTIVE: bool = false;
    fn access(&mut self, _: ObservedArray, _: u64, _: VertexAccess) {}
}

/// A value that a program returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReturnedValue {
    /// Its name.
    pub name: String,
    /// The value; of a ratio the numerator.
    pub value: i64,
    /// Of a ratio.
    pub denominator: Option<i64>,
}

impl ReturnedValue {
    /// For people: a ratio as a decimal fraction.
    #[must_use]
    pub fn text(&self) -> String {
        match self.denominator {
            None => self.value.to_string(),
            Some(0) => format!("{}/0", self.value),
            Some(below) => format!("{:.6}", self.value as f64 / below as f64),
        }
    }
}

/// What a program leaves behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramResults {
    /// What it returns.
    pub returned: Vec<ReturnedValue>,
    /// Globals at the end, in order.
    pub globals: Vec<i64>,
    /// Vertex properties at the end, in order.
    pub properties: Vec<Vec<i64>>,
}

/// Values of parameters that differ from the program's.
pub type ParameterValues = [(String, i64)];

/// Runs a program on so many host threads.
///
/// # Errors
/// [`VertexError`]: what [`crate::check::check`] finds, a parameter, a loop's limit, missing
/// in-edges.
pub fn run(
    program: &VertexProgram,
    graph: &Graph,
    parameters: &ParameterValues,
    host_threads: u32,
) -> Result<ProgramResults, VertexError> {
    let lowered = lower::lower(program, graph, parameters)?;
    run::run(&lowered, graph, host_threads.clamp(1, 1024), &mut NoObserver)
}

/// Runs a program on one thread and reports every access.
///
/// # Errors
/// As [`run`].
pub fn observe<O: VertexObserver + Send>(
    program: &VertexProgram,
    graph: &Graph,
    parameters: &ParameterValues,
    observer: &mut O,
) -> Result<ProgramResults, VertexError> {
    let lowered = lower::lower(program, graph, parameters)?;
    run::run(&lowered, graph, 1, observer)
}

/// Values of a program's parameters: its own where none is given.
///
/// # Errors
/// [`VertexError::Parameter`]: a name that the program does not have.
pub(crate) fn parameter_values(
    program: &VertexProgram,
    graph: &Graph,
    given: &ParameterValues,
) -> Result<Vec<(String, i64)>, VertexError> {
    use crate::syntax::DeclarationKind;
    let mut values: Vec<(String, i64)> = Vec::new();
    for declaration in program.declared(DeclarationKind::Parameter) {
        let own = evaluate_initial(&declaration.initial, graph, &values, 0);
        let given = given.iter().find(|(name, _)| *name == declaration.name);
        values.push((declaration.name.clone(), given.map_or(own, |(_, value)| *value)));
    }
    match given.iter().find(|(name, _)| !values.iter().any(|(known, _)| known == name)) {
        None => Ok(values),
        Some((name, _)) => {
            let known: Vec<&str> = values.iter().map(|(known, _)| known.as_str()).collect();
            let why = format!("the program has no such parameter; it has {}", known.join(", "));
            Err(VertexError::Parameter { name: name.clone(), why })
        }
    }
}

/// An initial value, for the vertex `number`.
pub(crate) fn evaluate_initial(
    expression: &crate::syntax::Expression,
    graph: &Graph,
    parameters: &ParameterValues,
    number: i64,
) -> i64 {
    use crate::syntax::{Expression, UnaryOperation, INFINITY};
    let evaluate = |part: &Expression| evaluate_initial(part, graph, parameters, number);
    match expression {
        Expression::Integer(value) => *value,
        Expression::Infinity => INFINITY,
        Expression::VertexCount => i64::from(graph.vertices()),
        Expression::EdgeCount => graph.edges() as i64,
        Expression::Name(name) if name == crate::check::SELF => number,
        Expression::Name(name) => {
            parameters.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value)
        }
        Expression::Unary { operation: UnaryOperation::Negate, a } => evaluate(a).wrapping_neg(),
        Expression::Unary { operation: UnaryOperation::Not, a } => i64::from(evaluate(a) == 0),
        Expression::Binary { operation, a, b } => operation.apply(evaluate(a), evaluate(b)),
        Expression::Property { .. } | Expression::Degree { .. } | Expression::HasEdge { .. } => 0,
    }
}
