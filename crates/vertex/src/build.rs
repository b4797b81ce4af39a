//! Vertex programs built in Rust: the same tree as text gives.
//!
//! ```
//! use terrace_vertex::build::ProgramBuilder;
//! use terrace_vertex::syntax::Direction;
//!
//! let mut program = ProgramBuilder::new("largest_neighbor");
//! let largest = program.vertex("largest", 0);
//! program.parallel_for("v", |threads, v| {
//!     threads.for_neighbors("u", v, Direction::In, |turn, u| {
//!         turn.maximize(v.target(&largest), u.number());
//!     });
//! });
//! let program = program.build()?;
//! assert_eq!(program.body.len(), 1);
//! # Ok::<(), terrace_vertex::VertexError>(())
//! ```
//!
//! What a program means is checked by [`ProgramBuilder::build`]. Its lines are those of
//! [`crate::format::format`], so that errors and counts by line have a text to refer to.

use crate::format::format;
use crate::parse::parse;
use crate::syntax::{
    AssignmentTarget, BinaryOperation, Declaration, DeclarationKind, Direction, Expression,
    Reduction, ResultItem, SpawnPlace, Statement, StatementKind, UnaryOperation, UpdateMode,
    VertexProgram,
};
use crate::VertexError;
use std::ops::{Add, BitAnd, BitOr, BitXor, Deref, DerefMut, Div, Mul, Neg, Not, Rem, Sub};

/// A value in a program: a number, a variable, or an operation on values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operand(Expression);

/// A vertex variable of a loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VertexVariable(String);

/// An edge variable of a loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeVariable(String);

/// A declared property of vertices or edges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropertyName(String);

/// A declared global, or a local.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VariableName(String);

/// Statements of a block, one after the other.
#[derive(Debug, Default)]
pub struct StatementsBuilder {
    statements: Vec<Statement>,
}

/// A program. Its statements outside of all loops are added as to a [`StatementsBuilder`].
#[derive(Debug)]
pub struct ProgramBuilder {
    program: VertexProgram,
    body: StatementsBuilder,
}

impl Operand {
    /// Larger than any distance.
    #[must_use]
    pub const fn infinity() -> Self {
        Self(Expression::Infinity)
    }

    /// How many vertices the graph has.
    #[must_use]
    pub const fn vertex_count() -> Self {
        Self(Expression::VertexCount)
    }

    /// How many edges the graph has; an undirected edge counts twice.
    #[must_use]
    pub const fn edge_count() -> Self {
        Self(Expression::EdgeCount)
    }

    /// The vertex's own number, in the initial value of a property.
    #[must_use]
    pub fn own_number() -> Self {
        Self(Expression::Name(crate::check::SELF.to_owned()))
    }

    /// 1 where there is an edge, else 0.
    #[must_use]
    pub fn has_edge(from: &VertexVariable, to: &VertexVariable) -> Self {
        Self(Expression::HasEdge { from: from.0.clone(), to: to.0.clone() })
    }

    fn binary(self, operation: BinaryOperation, other: impl Into<Self>) -> Self {
        let (a, b) = (Box::new(self.0), Box::new(other.into().0));
        Self(Expression::Binary { operation, a, b })
    }

    /// 1 where equal, else 0.
    #[must_use]
    pub fn equals(self, other: impl Into<Self>) -> Self {
        self.binary(BinaryOperation::Equal, other)
    }

    /// 1 where not equal, else 0.
    #[must_use]
    pub fn differs(self, other: impl Into<Self>) -> Self {
        self.binary(BinaryOperation::NotEqual, other)
    }

    /// 1 where less, else 0.
    #[must_use]
    pub fn less(self, other: impl Into<Self>) -> Self {
        self.binary(BinaryOperation::Less, other)
    }

    /// 1 where less or equal, else 0.
    #[must_use]
    pub fn at_most(self, other: impl Into<Self>) -> Self {
        self.binary(BinaryOperation::LessOrEqual, other)
    }

    /// 1 where greater, else 0.
    #[must_use]
    pub fn greater(self, other: impl Into<Self>) -> Self {
        self.binary(BinaryOperation::Greater, other)
    }

    /// 1 where greater or equal, else 0.
    #[must_use]
    pub fn at_least(self, other: impl Into<Self>) -> Self {
        self.binary(BinaryOperation::GreaterOrEqual, other)
    }

    /// 1 where both are not 0; the other is not evaluated where this is 0.
    #[must_use]
    pub fn and(self, other: impl Into<Self>) -> Self {
        self.binary(BinaryOperation::And, other)
    }

    /// 1 where either is not 0; the other is not evaluated where this is not 0.
    #[must_use]
    pub fn or(self, other: impl Into<Self>) -> Self {
        self.binary(BinaryOperation::Or, other)
    }

    /// The lesser.
    #[must_use]
    pub fn min(self, other: impl Into<Self>) -> Self {
        self.binary(BinaryOperation::Minimum, other)
    }

    /// The greater.
    #[must_use]
    pub fn max(self, other: impl Into<Self>) -> Self {
        self.binary(BinaryOperation::Maximum, other)
    }
}

impl From<i64> for Operand {
    fn from(value: i64) -> Self {
        Self(Expression::Integer(value))
    }
}

impl From<i32> for Operand {
    fn from(value: i32) -> Self {
        i64::from(value).into()
    }
}

impl From<&VariableName> for Operand {
    fn from(variable: &VariableName) -> Self {
        Self(Expression::Name(variable.0.clone()))
    }
}

macro_rules! arithmetic {
    ($($operation:ident $method:ident),*) => {$(
        impl<T: Into<Operand>> $operation<T> for Operand {
            type Output = Operand;
            fn $method(self, other: T) -> Operand {
                self.binary(arithmetic!(@ $operation), other)
            }
        }
    )*};
    (@ Add) => { BinaryOperation::Add };
    (@ Sub) => { BinaryOperation::Subtract };
    (@ Mul) => { BinaryOperation::Multiply };
    (@ Div) => { BinaryOperation::Divide };
    (@ Rem) => { BinaryOperation::Remainder };
    (@ BitAnd) => { BinaryOperation::BitAnd };
    (@ BitOr) => { BinaryOperation::BitOr };
    (@ BitXor) => { BinaryOperation::BitXor };
}

arithmetic!(Add add, Sub sub, Mul mul, Div div, Rem rem, BitAnd bitand, BitOr bitor, BitXor bitxor);

impl Neg for Operand {
    type Output = Self;
    fn neg(self) -> Self {
        Self(Expression::Unary { operation: UnaryOperation::Negate, a: Box::new(self.0) })
    }
}

impl Not for Operand {
    type Output = Self;
    fn not(self) -> Self {
        Self(Expression::Unary { operation: UnaryOperation::Not, a: Box::new(self.0) })
    }
}

impl VariableName {
    /// Its value.
    #[must_use]
    pub fn value(&self) -> Operand {
        self.into()
    }

    /// To assign or update it.
    #[must_use]
    pub fn target(&self) -> AssignmentTarget {
        AssignmentTarget::Name(self.0.clone())
    }
}

impl VertexVariable {
    /// The vertex's number.
    #[must_use]
    pub fn number(&self) -> Operand {
        Operand(Expression::Name(self.0.clone()))
    }

    /// A property's value.
    #[must_use]
    pub fn get(&self, property: &PropertyName) -> Operand {
        let (of, property) = (self.0.clone(), property.0.clone());
        Operand(Expression::Property { of, property })
    }

    /// To assign or update a property.
    #[must_use]
    pub fn target(&self, property: &PropertyName) -> AssignmentTarget {
        AssignmentTarget::Property { of: self.0.clone(), property: property.0.clone() }
    }

    /// How many neighbours it has in a direction.
    #[must_use]
    pub fn degree(&self, direction: Direction) -> Operand {
        Operand(Expression::Degree { of: self.0.clone(), direction })
    }
}

impl EdgeVariable {
    /// A property's value.
    #[must_use]
    pub fn get(&self, property: &PropertyName) -> Operand {
        let (of, property) = (self.0.clone(), property.0.clone());
        Operand(Expression::Property { of, property })
    }
}

impl StatementsBuilder {
    fn push(&mut self, kind: StatementKind) {
        self.statements.push(Statement { line: 0, kind });
    }

    fn inner(fill: impl FnOnce(&mut Self)) -> Vec<Statement> {
        let mut block = Self::default();
        fill(&mut block);
        block.statements
    }

    /// A local of a parallel loop, with its value.
    pub fn local(&mut self, name: &str, value: impl Into<Operand>) -> VariableName {
        self.push(StatementKind::Let { name: name.to_owned(), value: value.into().0 });
        VariableName(name.to_owned())
    }

    /// A local with the value that the target had before an atomic update.
    pub fn fetch(
        &mut self,
        name: &str,
        target: AssignmentTarget,
        reduction: Reduction,
        value: impl Into<Operand>,
    ) -> VariableName {
        let (local, value) = (name.to_owned(), value.into().0);
        self.push(StatementKind::Fetch { name: local, target, reduction, value });
        VariableName(name.to_owned())
    }

    /// `target = value;`
    pub fn assign(&mut self, target: AssignmentTarget, value: impl Into<Operand>) {
        self.push(StatementKind::Assign { target, value: value.into().0 });
    }

    /// `target op= value;`
    pub fn update(
        &mut self,
        mode: UpdateMode,
        target: AssignmentTarget,
        reduction: Reduction,
        value: impl Into<Operand>,
    ) {
        self.push(StatementKind::Update { mode, target, reduction, value: value.into().0 });
    }

    /// `target += value;`
    pub fn add(&mut self, target: AssignmentTarget, value: impl Into<Operand>) {
        self.update(UpdateMode::Plain, target, Reduction::Add, value);
    }

    /// `target min= value;`
    pub fn minimize(&mut self, target: AssignmentTarget, value: impl Into<Operand>) {
        self.update(UpdateMode::Plain, target, Reduction::Minimum, value);
    }

    /// `target max= value;`
    pub fn maximize(&mut self, target: AssignmentTarget, value: impl Into<Operand>) {
        self.update(UpdateMode::Plain, target, Reduction::Maximum, value);
    }

    /// `if condition { ... }`
    pub fn when(&mut self, condition: Operand, then: impl FnOnce(&mut Self)) {
        self.choose(condition, then, |_| {});
    }

    /// `if condition { ... } else { ... }`
    pub fn choose(
        &mut self,
        condition: Operand,
        then: impl FnOnce(&mut Self),
        otherwise: impl FnOnce(&mut Self),
    ) {
        let (then, otherwise) = (Self::inner(then), Self::inner(otherwise));
        self.push(StatementKind::If { condition: condition.0, then, otherwise });
    }

    /// `for vertex in of.neighbors { ... }`
    pub fn for_neighbors(
        &mut self,
        vertex: &str,
        of: &VertexVariable,
        direction: Direction,
        body: impl FnOnce(&mut Self, &VertexVariable),
    ) {
        let (variable, of) = (VertexVariable(vertex.to_owned()), of.0.clone());
        let body = Self::inner(|block| body(block, &variable));
        let (vertex, edge) = (variable.0, None);
        self.push(StatementKind::ForNeighbors { vertex, edge, of, direction, body });
    }

    /// `for vertex in of.neighbors via edge { ... }`
    pub fn for_edges(
        &mut self,
        [vertex, edge]: [&str; 2],
        of: &VertexVariable,
        direction: Direction,
        body: impl FnOnce(&mut Self, &VertexVariable, &EdgeVariable),
    ) {
        let (variable, of) = (VertexVariable(vertex.to_owned()), of.0.clone());
        let along = EdgeVariable(edge.to_owned());
        let body = Self::inner(|block| body(block, &variable, &along));
        let (vertex, edge) = (variable.0, Some(along.0));
        self.push(StatementKind::ForNeighbors { vertex, edge, of, direction, body });
    }

    /// `parallel for vertex in vertices { ... }`
    pub fn parallel_for(&mut self, vertex: &str, body: impl FnOnce(&mut Self, &VertexVariable)) {
        let variable = VertexVariable(vertex.to_owned());
        let body = Self::inner(|block| body(block, &variable));
        let (vertex, spawn) = (variable.0, SpawnPlace::Here);
        self.push(StatementKind::ParallelFor { vertex, spawn, body });
    }

    /// `while condition limit rounds { ... }`
    pub fn repeat(
        &mut self,
        condition: Operand,
        limit: impl Into<Operand>,
        body: impl FnOnce(&mut Self),
    ) {
        let (limit, body) = (limit.into().0, Self::inner(body));
        self.push(StatementKind::While { condition: condition.0, limit, body });
    }
}

impl ProgramBuilder {
    /// An empty program.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let program = VertexProgram { name: name.to_owned(), ..VertexProgram::default() };
        Self { program, body: StatementsBuilder::default() }
    }

    fn declare(&mut self, kind: DeclarationKind, name: &str, initial: Operand) -> String {
        let (name, initial) = (name.to_owned(), initial.0);
        self.program.declarations.push(Declaration { line: 0, kind, name: name.clone(), initial });
        name
    }

    /// A number that a caller may replace.
    pub fn parameter(&mut self, name: &str, initial: impl Into<Operand>) -> VariableName {
        VariableName(self.declare(DeclarationKind::Parameter, name, initial.into()))
    }

    /// A number.
    pub fn global(&mut self, name: &str, initial: impl Into<Operand>) -> VariableName {
        VariableName(self.declare(DeclarationKind::Global, name, initial.into()))
    }

    /// A number for each vertex.
    pub fn vertex(&mut self, name: &str, initial: impl Into<Operand>) -> PropertyName {
        PropertyName(self.declare(DeclarationKind::Vertex, name, initial.into()))
    }

    /// The weight of each edge.
    pub fn edge(&mut self, name: &str) -> PropertyName {
        PropertyName(self.declare(DeclarationKind::Edge, name, 0.into()))
    }

    /// A value that the program returns.
    pub fn result(&mut self, name: &str, value: impl Into<Operand>) {
        let (name, value) = (name.to_owned(), value.into().0);
        self.program.results.push(ResultItem { name, value, denominator: None });
    }

    /// A ratio that the program returns.
    pub fn ratio(&mut self, name: &str, value: impl Into<Operand>, below: impl Into<Operand>) {
        let (name, value, denominator) = (name.to_owned(), value.into().0, Some(below.into().0));
        self.program.results.push(ResultItem { name, value, denominator });
    }

    /// The program, checked, with the lines of its text.
    ///
    /// # Errors
    /// [`VertexError`]: names that are none or used twice, races, and whatever else
    /// [`crate::check::check`] finds.
    pub fn build(mut self) -> Result<VertexProgram, VertexError> {
        self.program.body = self.body.statements;
        let program = parse(&format(&self.program))?;
        crate::check::check(&program)?;
        Ok(program)
    }
}

impl Deref for ProgramBuilder {
    type Target = StatementsBuilder;
    fn deref(&self) -> &StatementsBuilder {
        &self.body
    }
}

impl DerefMut for ProgramBuilder {
    fn deref_mut(&mut self) -> &mut StatementsBuilder {
        &mut self.body
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::shipped;

    #[test]
    fn a_built_program_is_the_one_in_text() {
        let mut program = ProgramBuilder::new("bellman_ford_pull");
        let source = program.parameter("source", 0);
        let weight = program.edge("weight");
        let far = || Operand::infinity() * Operand::own_number().differs(&source);
        let [distance, next] = ["distance", "next"].map(|name| program.vertex(name, far()));
        let changed = program.global("changed", 1);
        let [reached, total, rounds] =
            ["reached", "total", "rounds"].map(|name| program.global(name, 0));
        program.repeat(changed.value(), Operand::vertex_count(), |round| {
            round.assign(changed.target(), 0);
            round.add(rounds.target(), 1);
            round.parallel_for("v", |threads, v| {
                threads.for_edges(["u", "e"], v, Direction::In, |turn, u, e| {
                    turn.when(u.get(&distance).less(Operand::infinity()), |then| {
                        then.minimize(v.target(&next), u.get(&distance) + e.get(&weight));
                    });
                });
            });
            round.parallel_for("x", |threads, x| {
                threads.when(x.get(&next).differs(x.get(&distance)), |then| {
                    then.assign(x.target(&distance), x.get(&next));
                    then.update(UpdateMode::Plain, changed.target(), Reduction::BitOr, 1);
                });
            });
        });
        program.parallel_for("y", |threads, y| {
            threads.when(y.get(&distance).less(Operand::infinity()), |then| {
                then.add(reached.target(), 1);
                then.add(total.target(), y.get(&distance));
            });
        });
        for (name, variable) in [("reached", &reached), ("total", &total), ("rounds", &rounds)] {
            program.result(name, variable);
        }
        let mut text = parse(shipped("bellman-ford-pull").unwrap()).unwrap();
        text.strip_comments();
        let built = program.build().unwrap();
        assert_eq!(format(&built), format(&text));
        assert!(built.body.iter().all(|statement| statement.line > 0));
    }

    #[test]
    fn operators_group_as_in_rust_and_wrong_programs_are_refused() {
        let mut program = ProgramBuilder::new("p");
        let a = program.vertex("a", (Operand::own_number() + 1) * 2 - 3);
        program.parallel_for("v", |threads, v| {
            let x = threads.local("x", -(v.get(&a) - (v.number() - 1)));
            threads.choose(
                !x.value().at_least(0).or(v.degree(Direction::Out).equals(0)),
                |then| then.assign(v.target(&a), x.value() % 7),
                |otherwise| otherwise.assign(v.target(&a), (x.value() & 3).max(2)),
            );
        });
        let text = format(&program.build().unwrap());
        assert!(text.contains("vertex a = (self + 1) * 2 - 3;"), "{text}");
        assert!(text.contains("let x = -(v.a - (v - 1));"), "{text}");
        assert!(text.contains("if !(x >= 0 || v.out_degree == 0) {"), "{text}");
        let mut racy = ProgramBuilder::new("p");
        let g = racy.global("g", 0);
        racy.parallel_for("v", |threads, v| threads.assign(g.target(), v.number()));
        assert!(racy.build().unwrap_err().to_string().contains("race on g"));
        let mut unnamed = ProgramBuilder::new("p");
        unnamed.global("not a name", 0);
        assert!(unnamed.build().is_err());
    }
}
