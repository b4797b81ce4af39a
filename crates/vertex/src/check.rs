//! Checks what a program's names mean, and that the threads of a parallel loop do not race.

mod order;

use crate::graph::Graph;
use crate::syntax::{
    AssignmentTarget, DeclarationKind, Direction, Expression, Reduction, Statement, StatementKind,
    UpdateMode, VertexNumbering, VertexProgram,
};
use crate::VertexError;
pub(crate) use order::find_order_dependence;

/// The vertex's own number in the initial value of a property.
pub const SELF: &str = "self";
/// Declarations of one kind at most.
const MOST_DECLARATIONS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VariableKind {
    Local,
    Vertex,
    Edge,
}

struct Checker<'a> {
    program: &'a VertexProgram,
    variables: Vec<(&'a str, VariableKind)>,
    in_parallel: bool,
}

type Checked = Result<(), VertexError>;

/// Checks that a graph has the in-edges that a program follows.
///
/// # Errors
/// [`VertexError::NoInEdges`].
pub(crate) fn check_in_edges(program: &VertexProgram, graph: &Graph) -> Result<(), VertexError> {
    if graph.lists(Direction::In).is_some() {
        return Ok(());
    }
    let mut needed = None;
    program.visit(&mut |statement| {
        let follows =
            matches!(statement.kind, StatementKind::ForNeighbors { direction: Direction::In, .. });
        let mut counts = false;
        for expression in statement.expressions() {
            expression.visit(&mut |part| {
                counts |= matches!(part, Expression::Degree { direction: Direction::In, .. });
            });
        }
        if (follows || counts) && needed.is_none() {
            needed = Some(statement.line);
        }
    });
    needed.map_or(Ok(()), |line| Err(VertexError::NoInEdges { line }))
}

/// Checks a program.
///
/// # Errors
/// [`VertexError::Meaning`], [`VertexError::Race`].
pub fn check(program: &VertexProgram) -> Checked {
    let mut checker = Checker { program, variables: Vec::new(), in_parallel: false };
    checker.declarations()?;
    checker.block(&program.body)?;
    for result in &program.results {
        for value in [Some(&result.value), result.denominator.as_ref()].into_iter().flatten() {
            checker.expression(value, 0)?;
        }
    }
    let mut checked = Ok(());
    program.visit(&mut |statement| {
        if checked.is_ok() {
            checked = check_races(statement);
        }
    });
    checked?;
    if program.numbering == VertexNumbering::ByDegree {
        if let Some((line, why)) = find_order_dependence(program) {
            let what = format!("{why}; leave out \"by degree\"");
            return Err(meaning(line, what));
        }
    }
    Ok(())
}

fn meaning(line: u32, what: String) -> VertexError {
    VertexError::Meaning { line, what }
}

impl<'a> Checker<'a> {
    fn declarations(&self) -> Checked {
        let real = |d: &&_| {
            !matches!(d,
                crate::syntax::Declaration { kind, .. } if *kind == DeclarationKind::Comment)
        };
        let declarations: Vec<_> = self.program.declarations.iter().filter(real).collect();
        if declarations.len() > MOST_DECLARATIONS {
            return Err(meaning(0, format!("more than {MOST_DECLARATIONS} declarations")));
        }
        for (index, declaration) in declarations.iter().enumerate() {
            let line = declaration.line;
            if declarations[..index].iter().any(|d| d.name == declaration.name) {
                let what = format!("{} is declared twice; rename one", declaration.name);
                return Err(meaning(line, what));
            }
            let per_vertex =
                matches!(declaration.kind, DeclarationKind::Vertex | DeclarationKind::Replicated);
            let mut checked = Ok(());
            declaration.initial.visit(&mut |part| {
                let known = match part {
                    Expression::Name(name) if name == SELF => per_vertex,
                    Expression::Name(name) => {
                        let kind = self.program.declaration(name).map(|d| d.kind);
                        kind == Some(DeclarationKind::Parameter)
                    }
                    Expression::Property { .. }
                    | Expression::Degree { .. }
                    | Expression::HasEdge { .. } => false,
                    _ => true,
                };
                if !known && checked.is_ok() {
                    let what = format!(
                        "the initial value of {} may use numbers, parameters and, of a vertex \
                         property, {SELF}",
                        declaration.name
                    );
                    checked = Err(meaning(line, what));
                }
            });
            checked?;
        }
        Ok(())
    }

    fn bind(&mut self, name: &'a str, kind: VariableKind, line: u32) -> Checked {
        let used = self.variables.iter().any(|(known, _)| *known == name)
            || self.program.declaration(name).is_some()
            || name == SELF;
        if used {
            return Err(meaning(line, format!("{name} is already in use here; choose a new name")));
        }
        self.variables.push((name, kind));
        Ok(())
    }

    fn block(&mut self, block: &'a [Statement]) -> Checked {
        let outer = self.variables.len();
        for statement in block {
            self.statement(statement)?;
        }
        self.variables.truncate(outer);
        Ok(())
    }

    fn statement(&mut self, statement: &'a Statement) -> Checked {
        let line = statement.line;
        for expression in statement.expressions() {
            self.expression(expression, line)?;
        }
        if let Some(target) = statement.target() {
            self.target(target, statement)?;
        }
        match &statement.kind {
            StatementKind::Let { name, .. } | StatementKind::Fetch { name, .. } => {
                if !self.in_parallel {
                    let what = "let outside of a parallel loop; declare a global instead";
                    return Err(meaning(line, what.to_owned()));
                }
                self.bind(name, VariableKind::Local, line)
            }
            StatementKind::If { then, otherwise, .. } => {
                self.block(then)?;
                self.block(otherwise)
            }
            StatementKind::ParallelFor { vertex, body, .. } => {
                if self.in_parallel {
                    let what = "a parallel loop within another; use for over neighbors";
                    return Err(meaning(line, what.to_owned()));
                }
                self.in_parallel = true;
                let outer = self.variables.len();
                self.bind(vertex, VariableKind::Vertex, line)?;
                self.block(body)?;
                self.variables.truncate(outer);
                self.in_parallel = false;
                Ok(())
            }
            StatementKind::ForNeighbors { vertex, edge, of, body, .. } => {
                self.expect(of, VariableKind::Vertex, line)?;
                let outer = self.variables.len();
                self.bind(vertex, VariableKind::Vertex, line)?;
                if let Some(edge) = edge {
                    self.bind(edge, VariableKind::Edge, line)?;
                }
                self.block(body)?;
                self.variables.truncate(outer);
                Ok(())
            }
            StatementKind::While { body, .. } => {
                if self.in_parallel {
                    let what = "while within a parallel loop; its threads could run forever";
                    return Err(meaning(line, what.to_owned()));
                }
                self.block(body)
            }
            _ => Ok(()),
        }
    }

    fn target(&mut self, target: &AssignmentTarget, statement: &Statement) -> Checked {
        let line = statement.line;
        match target {
            AssignmentTarget::Property { of, property } => {
                self.expect(of, VariableKind::Vertex, line)?;
                match self.program.declaration(property).map(|d| d.kind) {
                    Some(DeclarationKind::Vertex) => Ok(()),
                    Some(DeclarationKind::Replicated) => {
                        let what = format!("{property} is replicated and cannot be changed");
                        Err(meaning(line, what))
                    }
                    _ => Err(meaning(line, format!("{property} is no vertex property"))),
                }
            }
            AssignmentTarget::Name(name) => {
                let local = self.variables.iter().find(|(known, _)| known == name);
                let global = self.program.declaration(name).map(|d| d.kind);
                let mode = match statement.kind {
                    StatementKind::Update { mode, .. } => mode,
                    StatementKind::Fetch { .. } => UpdateMode::Atomic,
                    _ => UpdateMode::Plain,
                };
                match (local, global) {
                    (Some((_, VariableKind::Local)), _) if mode == UpdateMode::Plain => Ok(()),
                    (Some((_, VariableKind::Local)), _) => {
                        Err(meaning(line, format!("{name} is local; leave out atomic or remote")))
                    }
                    (None, Some(DeclarationKind::Global)) => Ok(()),
                    _ => Err(meaning(line, format!("{name} is no global or local to change"))),
                }
            }
        }
    }

    fn expect(&self, name: &str, kind: VariableKind, line: u32) -> Checked {
        let found = self.variables.iter().find(|(known, _)| *known == name).map(|(_, k)| *k);
        if found == Some(kind) {
            return Ok(());
        }
        let what = if kind == VariableKind::Vertex { "vertex" } else { "edge" };
        Err(meaning(line, format!("{name} is no {what} here")))
    }

    fn expression(&self, expression: &Expression, line: u32) -> Checked {
        let mut checked = Ok(());
        expression.visit(&mut |part| {
            if checked.is_ok() {
                checked = self.operand(part, line);
            }
        });
        checked
    }

    fn operand(&self, operand: &Expression, line: u32) -> Checked {
        match operand {
            Expression::Name(name) => {
                let variable = self.variables.iter().find(|(known, _)| known == name);
                let declared = self.program.declaration(name).map(|d| d.kind);
                match (variable, declared) {
                    (Some((_, VariableKind::Local | VariableKind::Vertex)), _)
                    | (None, Some(DeclarationKind::Parameter | DeclarationKind::Global)) => Ok(()),
                    (Some(_), _) => Err(meaning(line, format!("{name} is an edge, no number"))),
                    (None, Some(_)) => {
                        Err(meaning(line, format!("{name} is a property; write VERTEX.{name}")))
                    }
                    (None, None) => Err(meaning(line, format!("{name} is not declared"))),
                }
            }
            Expression::Property { of, property } => {
                match self.program.declaration(property).map(|d| d.kind) {
                    Some(DeclarationKind::Vertex | DeclarationKind::Replicated) => {
                        self.expect(of, VariableKind::Vertex, line)
                    }
                    Some(DeclarationKind::Edge) => self.expect(of, VariableKind::Edge, line),
                    _ => Err(meaning(line, format!("{property} is no property"))),
                }
            }
            Expression::Degree { of, .. } => self.expect(of, VariableKind::Vertex, line),
            Expression::HasEdge { from, to } => {
                self.expect(from, VariableKind::Vertex, line)?;
                self.expect(to, VariableKind::Vertex, line)
            }
            _ => Ok(()),
        }
    }
}

/// How a thread of a parallel loop accesses a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AccessKind {
    Read,
    Write,
    Update(UpdateMode, Reduction),
}

struct Access<'a> {
    value: &'a str,
    /// Of the thread's own vertex; of globals never.
    own: bool,
    global: bool,
    kind: AccessKind,
    line: u32,
}

fn check_races(statement: &Statement) -> Checked {
    let StatementKind::ParallelFor { vertex, body, .. } = &statement.kind else {
        return Ok(());
    };
    let mut accesses: Vec<Access> = Vec::new();
    let mut locals: Vec<&str> = Vec::new();
    for inner in body {
        inner.visit(&mut |inner| collect(inner, vertex, &mut locals, &mut accesses));
    }
    let race = |a: &Access, b: &Access| VertexError::Race {
        start: statement.line,
        value: a.value.to_owned(),
        first: a.line.min(b.line),
        second: a.line.max(b.line),
    };
    for (index, a) in accesses.iter().enumerate() {
        if !a.own && a.kind == AccessKind::Write {
            return Err(race(a, a));
        }
        let plain = |access: &Access| {
            matches!(access.kind, AccessKind::Write | AccessKind::Update(UpdateMode::Plain, _))
        };
        if !a.own && !a.global && plain(a) {
            return Err(race(a, a));
        }
        for b in accesses[..index].iter().filter(|b| b.value == a.value) {
            let other = |x: &Access, y: &Access| plain(x) && !y.own;
            if !a.global && (other(a, b) || other(b, a)) {
                return Err(race(a, b));
            }
            // A thread's own sum of a global is only known when the loop has ended.
            let mixed = a.global
                && a.kind != b.kind
                && [a.kind, b.kind]
                    .iter()
                    .any(|kind| matches!(kind, AccessKind::Update(UpdateMode::Plain, _)));
            if mixed {
                return Err(race(a, b));
            }
        }
    }
    Ok(())
}

fn collect<'a>(
    statement: &'a Statement,
    vertex: &str,
    locals: &mut Vec<&'a str>,
    accesses: &mut Vec<Access<'a>>,
) {
    let line = statement.line;
    match &statement.kind {
        StatementKind::Let { name, .. } | StatementKind::Fetch { name, .. } => locals.push(name),
        StatementKind::ForNeighbors { vertex, .. } => locals.push(vertex),
        _ => {}
    }
    for expression in statement.expressions() {
        let mut reads = Vec::new();
        find_reads(expression, &mut reads);
        for (of, value) in reads {
            if of.is_none() && (locals.contains(&value) || value == vertex) {
                continue;
            }
            let own = of == Some(vertex);
            let global = of.is_none();
            accesses.push(Access { value, own, global, kind: AccessKind::Read, line });
        }
    }
    let kind = match &statement.kind {
        StatementKind::Assign { .. } => AccessKind::Write,
        StatementKind::Update { mode, reduction, .. } => AccessKind::Update(*mode, *reduction),
        StatementKind::Fetch { reduction, .. } => {
            AccessKind::Update(UpdateMode::Atomic, *reduction)
        }
        _ => return,
    };
    match statement.target() {
        Some(AssignmentTarget::Property { of, property }) => {
            let own = of == vertex;
            accesses.push(Access { value: property, own, global: false, kind, line });
        }
        Some(AssignmentTarget::Name(name)) if !locals.contains(&name.as_str()) => {
            accesses.push(Access { value: name, own: false, global: true, kind, line });
        }
        _ => {}
    }
}

fn find_reads<'a>(expression: &'a Expression, reads: &mut Vec<(Option<&'a str>, &'a str)>) {
    match expression {
        Expression::Name(name) => reads.push((None, name)),
        Expression::Property { of, property } => reads.push((Some(of), property)),
        Expression::Unary { a, .. } => find_reads(a, reads),
        Expression::Binary { a, b, .. } => {
            find_reads(a, reads);
            find_reads(b, reads);
        }
        _ => {}
    }
}
