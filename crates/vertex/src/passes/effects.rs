//! What the threads of a parallel loop read and write, and whether two loops depend on each other.

use crate::syntax::{
    AssignmentTarget, Expression, Reduction, Statement, StatementKind, UpdateMode,
};

/// How a value is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EffectKind {
    Read,
    Write,
    /// An update of which nobody in the thread sees the value.
    Update(UpdateMode, Reduction),
}

/// An access to a property or global.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Effect {
    /// `None`: a global. Otherwise whether it is the loop's own vertex.
    pub own: Option<bool>,
    pub name: String,
    pub kind: EffectKind,
    pub line: u32,
}

/// Accesses of statements that the loop over `vertex` consists of.
pub(super) fn effects(vertex: &str, body: &[Statement]) -> Vec<Effect> {
    let mut effects = Vec::new();
    let mut locals: Vec<String> = vec![vertex.to_owned()];
    for statement in body {
        statement.visit(&mut |inner| match &inner.kind {
            StatementKind::Let { name, .. } | StatementKind::Fetch { name, .. } => {
                locals.push(name.clone());
            }
            StatementKind::ForNeighbors { vertex, edge, .. } => {
                locals.push(vertex.clone());
                locals.extend(edge.clone());
            }
            _ => {}
        });
    }
    for statement in body {
        statement.visit(&mut |inner| collect(inner, vertex, &locals, &mut effects));
    }
    effects
}

fn collect(inner: &Statement, vertex: &str, locals: &[String], effects: &mut Vec<Effect>) {
    let line = inner.line;
    for expression in inner.expressions() {
        expression.visit(&mut |part| match part {
            Expression::Name(name) if !locals.contains(name) => {
                let (name, kind) = (name.clone(), EffectKind::Read);
                effects.push(Effect { own: None, name, kind, line });
            }
            Expression::Property { of, property } => {
                let own = Some(of == vertex);
                let (name, kind) = (property.clone(), EffectKind::Read);
                effects.push(Effect { own, name, kind, line });
            }
            _ => {}
        });
    }
    let (target, kinds) = match &inner.kind {
        StatementKind::Assign { target, .. } => (target, vec![EffectKind::Write]),
        StatementKind::Fetch { target, .. } => (target, vec![EffectKind::Read, EffectKind::Write]),
        StatementKind::Update { target, mode, reduction, .. } => {
            (target, vec![EffectKind::Update(*mode, *reduction)])
        }
        _ => return,
    };
    let (own, name) = match target {
        AssignmentTarget::Name(name) if locals.contains(name) => return,
        AssignmentTarget::Name(name) => (None, name),
        AssignmentTarget::Property { of, property } => (Some(of == vertex), property),
    };
    for kind in kinds {
        effects.push(Effect { own, name: name.clone(), kind, line });
    }
}

/// Why all of `first` must have happened before any of `second`; `None`: it need not.
pub(super) fn dependence(first: &[Effect], second: &[Effect]) -> Option<String> {
    for a in first {
        for b in second.iter().filter(|b| b.name == a.name && b.own.is_some() == a.own.is_some()) {
            let own = a.own == Some(true) && b.own == Some(true);
            let reads = a.kind == EffectKind::Read && b.kind == EffectKind::Read;
            // Updates of one kind may come in any order.
            let commute = match (a.kind, b.kind) {
                (EffectKind::Update(m, r), EffectKind::Update(n, s)) => {
                    r == s && m == n && (a.own.is_none() || m != UpdateMode::Plain)
                }
                _ => false,
            };
            if !own && !reads && !commute {
                return Some(format!(
                    "the access to {} at line {} depends on that at line {}",
                    a.name, b.line, a.line
                ));
            }
        }
    }
    None
}

/// Gives a variable another name, wherever it is used.
pub(super) fn rename(body: &mut [Statement], from: &str, to: &str) {
    let swap = |name: &mut String| {
        if name == from {
            to.clone_into(name);
        }
    };
    for statement in body {
        statement.change(&mut |inner| {
            for expression in inner.expressions_mut() {
                expression.change(&mut |part| match part {
                    Expression::Name(name) => swap(name),
                    Expression::Property { of, .. } | Expression::Degree { of, .. } => swap(of),
                    Expression::HasEdge { from, to } => {
                        swap(from);
                        swap(to);
                    }
                    _ => {}
                });
            }
            match &mut inner.kind {
                StatementKind::Let { name, .. } => swap(name),
                StatementKind::Fetch { name, target, .. } => {
                    swap(name);
                    swap_target(target, &swap);
                }
                StatementKind::Assign { target, .. } | StatementKind::Update { target, .. } => {
                    swap_target(target, &swap);
                }
                StatementKind::ForNeighbors { vertex, edge, of, .. } => {
                    swap(vertex);
                    swap(of);
                    edge.iter_mut().for_each(&swap);
                }
                StatementKind::ParallelFor { vertex, .. } => swap(vertex),
                _ => {}
            }
        });
    }
}

fn swap_target(target: &mut AssignmentTarget, swap: &impl Fn(&mut String)) {
    match target {
        AssignmentTarget::Name(name) => swap(name),
        AssignmentTarget::Property { of, .. } => swap(of),
    }
}

/// Variables that statements bind.
pub(super) fn bound(body: &[Statement]) -> Vec<String> {
    let mut names = Vec::new();
    for statement in body {
        statement.visit(&mut |inner| match &inner.kind {
            StatementKind::Let { name, .. } | StatementKind::Fetch { name, .. } => {
                names.push(name.clone());
            }
            StatementKind::ForNeighbors { vertex, edge, .. } => {
                names.push(vertex.clone());
                names.extend(edge.clone());
            }
            StatementKind::ParallelFor { vertex, .. } => names.push(vertex.clone()),
            _ => {}
        });
    }
    names
}

/// A name that is not among `used`.
pub(super) fn fresh(name: &str, used: &[String]) -> String {
    let mut tries = (2u32..).map(|n| format!("{name}{n}"));
    tries.find(|fresh| !used.contains(fresh)).unwrap_or_else(|| name.to_owned())
}
