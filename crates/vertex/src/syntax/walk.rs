//! Walks over trees, reading and changing.

use super::{
    AssignmentTarget, Declaration, DeclarationKind, Expression, Statement, StatementKind,
    VertexProgram,
};

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
