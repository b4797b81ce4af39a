//! Names to numbers: the tree that is executed.

use super::{evaluate_initial, parameter_values, ParameterValues};
use crate::graph::Graph;
use crate::syntax::{
    AssignmentTarget, BinaryOperation, DeclarationKind, Direction, Expression, Reduction,
    Statement, StatementKind, UnaryOperation, UpdateMode, VertexProgram, INFINITY,
};
use crate::VertexError;

#[derive(Debug)]
pub(super) enum Value {
    Constant(i64),
    Local(u16),
    Global(u16),
    Property { property: u16, vertex: u16 },
    Degree { vertex: u16, direction: Direction },
    HasEdge { from: u16, to: u16 },
    Negate(Box<Value>),
    Not(Box<Value>),
    Binary { operation: BinaryOperation, a: Box<Value>, b: Box<Value> },
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    Local(u16),
    Global(u16),
    Property { property: u16, vertex: u16 },
}

#[derive(Debug)]
pub(super) enum Action {
    Set {
        place: Place,
        value: Value,
    },
    Update {
        mode: UpdateMode,
        place: Place,
        reduction: Reduction,
        value: Value,
    },
    Fetch {
        local: u16,
        place: Place,
        reduction: Reduction,
        value: Value,
    },
    If {
        condition: Value,
        then: Vec<Action>,
        otherwise: Vec<Action>,
    },
    ParallelFor {
        vertex: u16,
        body: Vec<Action>,
    },
    ForNeighbors {
        vertex: u16,
        edge: Option<u16>,
        of: u16,
        direction: Direction,
        body: Vec<Action>,
    },
    While {
        line: u32,
        condition: Value,
        limit: Value,
        body: Vec<Action>,
    },
}

/// A program ready to run.
#[derive(Debug)]
pub(super) struct Lowered {
    pub body: Vec<Action>,
    pub results: Vec<(String, Value, Option<Value>)>,
    pub globals: Vec<i64>,
    pub properties: Vec<Vec<i64>>,
    pub locals: usize,
}

struct Lowering<'a> {
    program: &'a VertexProgram,
    graph: &'a Graph,
    parameters: Vec<(String, i64)>,
    globals: Vec<&'a str>,
    properties: Vec<&'a str>,
    scope: Vec<&'a str>,
    locals: usize,
}

pub(super) fn lower(
    program: &VertexProgram,
    graph: &Graph,
    parameters: &ParameterValues,
) -> Result<Lowered, VertexError> {
    crate::check::check(program)?;
    crate::check::check_in_edges(program, graph)?;
    let parameters = parameter_values(program, graph, parameters)?;
    let globals: Vec<_> = program.declared(DeclarationKind::Global).collect();
    let properties: Vec<_> = vertex_properties(program).collect();
    let initial = |number| {
        let (graph, parameters) = (graph, &parameters);
        move |d: &&crate::syntax::Declaration| {
            evaluate_initial(&d.initial, graph, parameters, number)
        }
    };
    let global_values = globals.iter().map(initial(0)).collect();
    let property_values = properties
        .iter()
        .map(|d| (0..i64::from(graph.vertices())).map(|number| initial(number)(d)).collect())
        .collect();
    let mut lowering = Lowering {
        program,
        graph,
        globals: globals.iter().map(|d| d.name.as_str()).collect(),
        properties: properties.iter().map(|d| d.name.as_str()).collect(),
        parameters: parameters.clone(),
        scope: Vec::new(),
        locals: 0,
    };
    let body = lowering.block(&program.body);
    let results = program
        .results
        .iter()
        .map(|result| {
            let below = result.denominator.as_ref().map(|below| lowering.value(below));
            (result.name.clone(), lowering.value(&result.value), below)
        })
        .collect();
    let locals = lowering.locals;
    Ok(Lowered { body, results, globals: global_values, properties: property_values, locals })
}

/// Properties of vertices, replicated ones too, in order.
pub(crate) fn vertex_properties(
    program: &VertexProgram,
) -> impl Iterator<Item = &crate::syntax::Declaration> {
    let kinds = [DeclarationKind::Vertex, DeclarationKind::Replicated];
    program.declarations.iter().filter(move |d| kinds.contains(&d.kind))
}

impl<'a> Lowering<'a> {
    fn block(&mut self, block: &'a [Statement]) -> Vec<Action> {
        let outer = self.scope.len();
        let actions = block.iter().filter_map(|statement| self.statement(statement)).collect();
        self.scope.truncate(outer);
        actions
    }

    fn bind(&mut self, name: &'a str) -> u16 {
        self.scope.push(name);
        self.locals = self.locals.max(self.scope.len());
        (self.scope.len() - 1) as u16
    }

    fn variable(&self, name: &str) -> u16 {
        self.scope.iter().rposition(|known| *known == name).unwrap_or(0) as u16
    }

    fn statement(&mut self, statement: &'a Statement) -> Option<Action> {
        Some(match &statement.kind {
            StatementKind::Comment(_) => return None,
            StatementKind::Let { name, value } => {
                let value = self.value(value);
                Action::Set { place: Place::Local(self.bind(name)), value }
            }
            StatementKind::Fetch { name, target, reduction, value } => {
                let (place, value) = (self.place(target), self.value(value));
                Action::Fetch { local: self.bind(name), place, reduction: *reduction, value }
            }
            StatementKind::Assign { target, value } => {
                Action::Set { place: self.place(target), value: self.value(value) }
            }
            StatementKind::Update { mode, target, reduction, value } => Action::Update {
                mode: *mode,
                place: self.place(target),
                reduction: *reduction,
                value: self.value(value),
            },
            StatementKind::If { condition, then, otherwise } => Action::If {
                condition: self.value(condition),
                then: self.block(then),
                otherwise: self.block(otherwise),
            },
            StatementKind::ParallelFor { vertex, body, .. } => {
                let outer = self.scope.len();
                let vertex = self.bind(vertex);
                let body = self.block(body);
                self.scope.truncate(outer);
                Action::ParallelFor { vertex, body }
            }
            StatementKind::ForNeighbors { vertex, edge, of, direction, body } => {
                let of = self.variable(of);
                let outer = self.scope.len();
                let vertex = self.bind(vertex);
                let edge = edge.as_ref().map(|edge| self.bind(edge));
                let body = self.block(body);
                self.scope.truncate(outer);
                Action::ForNeighbors { vertex, edge, of, direction: *direction, body }
            }
            StatementKind::While { condition, limit, body } => Action::While {
                line: statement.line,
                condition: self.value(condition),
                limit: self.value(limit),
                body: self.block(body),
            },
        })
    }

    fn index(names: &[&str], name: &str) -> u16 {
        names.iter().position(|known| *known == name).unwrap_or(0) as u16
    }

    fn place(&self, target: &AssignmentTarget) -> Place {
        match target {
            AssignmentTarget::Name(name) if self.scope.contains(&name.as_str()) => {
                Place::Local(self.variable(name))
            }
            AssignmentTarget::Name(name) => Place::Global(Self::index(&self.globals, name)),
            AssignmentTarget::Property { of, property } => Place::Property {
                property: Self::index(&self.properties, property),
                vertex: self.variable(of),
            },
        }
    }

    fn value(&self, expression: &Expression) -> Value {
        let part = |part: &Expression| Box::new(self.value(part));
        match expression {
            Expression::Integer(value) => Value::Constant(*value),
            Expression::Infinity => Value::Constant(INFINITY),
            Expression::VertexCount => Value::Constant(i64::from(self.graph.vertices())),
            Expression::EdgeCount => Value::Constant(self.graph.edges() as i64),
            Expression::Name(name) if self.scope.contains(&name.as_str()) => {
                Value::Local(self.variable(name))
            }
            Expression::Name(name) => {
                match self.parameters.iter().find(|(known, _)| known == name) {
                    Some((_, value)) => Value::Constant(*value),
                    None => Value::Global(Self::index(&self.globals, name)),
                }
            }
            Expression::Property { of, property } => {
                // The slot of an edge variable holds its weight.
                if self.program.declaration(property).map(|d| d.kind) == Some(DeclarationKind::Edge)
                {
                    return Value::Local(self.variable(of));
                }
                let property = Self::index(&self.properties, property);
                Value::Property { property, vertex: self.variable(of) }
            }
            Expression::Degree { of, direction } => {
                Value::Degree { vertex: self.variable(of), direction: *direction }
            }
            Expression::HasEdge { from, to } => {
                Value::HasEdge { from: self.variable(from), to: self.variable(to) }
            }
            Expression::Unary { operation: UnaryOperation::Negate, a } => Value::Negate(part(a)),
            Expression::Unary { operation: UnaryOperation::Not, a } => Value::Not(part(a)),
            Expression::Binary { operation, a, b } => {
                Value::Binary { operation: *operation, a: part(a), b: part(b) }
            }
        }
    }
}
