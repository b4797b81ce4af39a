//! Code for migratory threads.
//!
//! One thread runs the program's body on nodelet 0. A parallel loop spawns a thread for each
//! vertex; what the body needs of globals is passed in registers. Sums of globals are kept in
//! registers until a thread ends, and then sent as one update.

mod data;
mod expressions;
mod statements;

use crate::graph::Graph;
use crate::layout::DataLayout;
use crate::native::{parameter_values, ParameterValues, ProgramResults, ReturnedValue};
use crate::syntax::{Expression, VertexNumbering, VertexProgram, INFINITY};
use crate::VertexError;
pub use data::GraphArrays;
use terrace_migratory::code::{MachineCode, Register};
use terrace_migratory::memory::{MemoryImage, MemoryMap};

/// A program, ready for a machine, with its data.
#[derive(Debug, Clone)]
pub struct CompiledProgram {
    /// The instructions.
    pub code: MachineCode,
    /// Where the arrays lie.
    pub map: MemoryMap,
    /// What they hold at the start.
    pub memory: MemoryImage,
    arrays: GraphArrays,
    results: Vec<CompiledResult>,
    parameters: Vec<(String, i64)>,
    counts: (i64, i64),
    /// Of each vertex of the graph: its number where it is laid out.
    numbers: Vec<u32>,
}

#[derive(Debug, Clone)]
struct CompiledResult {
    name: String,
    value: Expression,
    denominator: Option<Expression>,
}

/// Compiles a program for a graph on so many nodelets.
///
/// # Errors
/// As [`crate::native::run`]; and [`VertexError::Meaning`] where a loop needs more registers than
/// there are.
pub fn compile(
    program: &VertexProgram,
    graph: &Graph,
    parameters: &ParameterValues,
    layout: DataLayout,
    nodelets: u32,
) -> Result<CompiledProgram, VertexError> {
    crate::check::check(program)?;
    crate::check::check_in_edges(program, graph)?;
    let parameters = parameter_values(program, graph, parameters)?;
    let numbers = match program.numbering {
        VertexNumbering::Given => (0..graph.vertices()).collect(),
        VertexNumbering::ByDegree => graph.numbers_by_degree(),
    };
    let renumbered = match program.numbering {
        VertexNumbering::Given => None,
        VertexNumbering::ByDegree => Some(graph.renumbered(&numbers)),
    };
    let graph = renumbered.as_ref().unwrap_or(graph);
    let (map, memory, arrays) =
        data::place(program, graph, &numbers, &parameters, layout, nodelets);
    let counts = (i64::from(graph.vertices()), graph.edges() as i64);
    let mut generator = Generator {
        program,
        arrays: &arrays,
        parameters: &parameters,
        counts,
        nodelets,
        code: MachineCode::default(),
        scope: Vec::new(),
        next_register: 0,
        line: 0,
        in_parallel: false,
    };
    generator.program()?;
    let code = generator.code;
    let results = program
        .results
        .iter()
        .map(|result| CompiledResult {
            name: result.name.clone(),
            value: result.value.clone(),
            denominator: result.denominator.clone(),
        })
        .collect();
    Ok(CompiledProgram { code, map, memory, arrays, results, parameters, counts, numbers })
}

impl CompiledProgram {
    /// What the program left in a machine's memory.
    ///
    /// # Errors
    /// [`VertexError::Unbounded`] where a loop reached its limit.
    pub fn results(&self, memory: &MemoryImage) -> Result<ProgramResults, VertexError> {
        let get = |array, index: usize| memory.get(&self.map, array, index as i64).unwrap_or(0);
        let globals = self.arrays.global_names.len();
        let line = get(self.arrays.globals, globals);
        if line != 0 {
            let limit = get(self.arrays.globals, globals + 1);
            return Err(VertexError::Unbounded { line: line as u32, limit });
        }
        let globals: Vec<i64> = (0..globals).map(|g| get(self.arrays.globals, g)).collect();
        let properties = self
            .arrays
            .properties
            .iter()
            .map(|property| {
                let of = |vertex: &u32| {
                    let vertex = *vertex as usize;
                    let direct = property.replicated || self.arrays.record_of.is_empty();
                    let index =
                        if direct { vertex } else { self.arrays.record_of[vertex] as usize };
                    get(property.array, index)
                };
                self.numbers.iter().map(of).collect()
            })
            .collect();
        let evaluate = |expression: &Expression| self.evaluate(expression, &globals);
        let returned = self
            .results
            .iter()
            .map(|result| ReturnedValue {
                name: result.name.clone(),
                value: evaluate(&result.value),
                denominator: result.denominator.as_ref().map(&evaluate),
            })
            .collect();
        Ok(ProgramResults { returned, globals, properties })
    }

    /// The host evaluates what a program returns.
    fn evaluate(&self, expression: &Expression, globals: &[i64]) -> i64 {
        use crate::syntax::UnaryOperation;
        let evaluate = |part: &Expression| self.evaluate(part, globals);
        match expression {
            Expression::Integer(value) => *value,
            Expression::Infinity => INFINITY,
            Expression::VertexCount => self.counts.0,
            Expression::EdgeCount => self.counts.1,
            Expression::Name(name) => {
                let parameter = self.parameters.iter().find(|(known, _)| known == name);
                let global = self.arrays.global_names.iter().position(|known| known == name);
                parameter
                    .map(|(_, value)| *value)
                    .or_else(|| globals.get(global?).copied())
                    .unwrap_or(0)
            }
            Expression::Unary { operation: UnaryOperation::Negate, a } => {
                evaluate(a).wrapping_neg()
            }
            Expression::Unary { operation: UnaryOperation::Not, a } => i64::from(evaluate(a) == 0),
            Expression::Binary { operation, a, b } => operation.apply(evaluate(a), evaluate(b)),
            Expression::Property { .. }
            | Expression::Degree { .. }
            | Expression::HasEdge { .. } => 0,
        }
    }
}

/// What a name stands for.
#[derive(Debug, Clone, Copy)]
enum Binding {
    /// A local.
    Local(Register),
    /// A vertex: its number, and its record once it is known. Where vertices are striped, the
    /// record is the number.
    Vertex { number: Register, record: Option<Register> },
    /// An edge: its weight.
    Edge(Register),
    /// A global that the loop's body reads.
    Passed(Register),
    /// A global that the loop's body sums.
    Partial(Register),
}

struct Generator<'a> {
    program: &'a VertexProgram,
    arrays: &'a GraphArrays,
    parameters: &'a ParameterValues,
    counts: (i64, i64),
    nodelets: u32,
    code: MachineCode,
    scope: Vec<(&'a str, Binding)>,
    next_register: u8,
    line: u32,
    in_parallel: bool,
}
