//! Whether a program computes the same whatever numbers its vertices have, and in whatever order it
//! meets neighbours.

use crate::syntax::{
    AssignmentTarget, Expression, Reduction, Statement, StatementKind, UpdateMode, VertexProgram,
};

/// The first line where a program depends on the order of vertices, and how.
pub(crate) fn find_order_dependence(program: &VertexProgram) -> Option<(u32, String)> {
    numbers_in(&program.body, &mut Vec::new()).or_else(|| {
        let mut found = None;
        program.visit(&mut |statement| {
            found = found.take().or_else(|| match &statement.kind {
                StatementKind::Fetch { target, .. } => Some((
                    statement.line,
                    format!("the value that {} had depends on the order of threads", name(target)),
                )),
                StatementKind::ParallelFor { body, .. } => {
                    let shared = |mode| mode != UpdateMode::Plain;
                    mixed_updates(body, &updates_in(body, shared))
                }
                StatementKind::ForNeighbors { body, .. } => neighbors_in(body),
                _ => None,
            });
        });
        found
    })
}

/// A use of a vertex's number as a value.
fn numbers_in<'a>(block: &'a [Statement], vertices: &mut Vec<&'a str>) -> Option<(u32, String)> {
    for statement in block {
        let mut used = None;
        for expression in statement.expressions() {
            expression.visit(&mut |part| match part {
                Expression::Name(name) if vertices.contains(&name.as_str()) && used.is_none() => {
                    used = Some((statement.line, format!("it uses the number of {name}")));
                }
                _ => {}
            });
        }
        if used.is_some() {
            return used;
        }
        let outer = vertices.len();
        match &statement.kind {
            StatementKind::ParallelFor { vertex, .. }
            | StatementKind::ForNeighbors { vertex, .. } => vertices.push(vertex),
            _ => {}
        }
        let inner = statement.blocks().into_iter().find_map(|block| numbers_in(block, vertices));
        vertices.truncate(outer);
        if inner.is_some() {
            return inner;
        }
    }
    None
}

/// What is updated, without the vertex: a property, global or local.
fn name(target: &AssignmentTarget) -> &str {
    match target {
        AssignmentTarget::Name(name) | AssignmentTarget::Property { property: name, .. } => name,
    }
}

/// Names that a block updates in a mode, each with its first reduction.
fn updates_in(block: &[Statement], counts: impl Fn(UpdateMode) -> bool) -> Vec<(&str, Reduction)> {
    let mut updates: Vec<(&str, Reduction)> = Vec::new();
    for statement in block {
        statement.visit(&mut |inner| {
            if let StatementKind::Update { mode, target, reduction, .. } = &inner.kind {
                if counts(*mode) && !updates.iter().any(|(known, _)| *known == name(target)) {
                    updates.push((name(target), *reduction));
                }
            }
        });
    }
    updates
}

/// A second reduction of what is updated, or a read of it.
fn mixed_updates(block: &[Statement], updates: &[(&str, Reduction)]) -> Option<(u32, String)> {
    let mut found = None;
    let find = |wanted: &str| updates.iter().find(|(known, _)| *known == wanted);
    for statement in block {
        statement.visit(&mut |inner| {
            let mut note = |name: &str| {
                let what = format!("the value of {name} there depends on the order of vertices");
                found.get_or_insert((inner.line, what));
            };
            for expression in inner.expressions() {
                expression.visit(&mut |part| match part {
                    Expression::Name(name) | Expression::Property { property: name, .. }
                        if find(name).is_some() =>
                    {
                        note(name);
                    }
                    _ => {}
                });
            }
            if let StatementKind::Update { target, reduction, .. } = &inner.kind {
                if find(name(target)).is_some_and(|(_, first)| first != reduction) {
                    note(name(target));
                }
            }
        });
    }
    found
}

/// In a loop over neighbours all changes to what lives longer than a turn must commute.
fn neighbors_in(body: &[Statement]) -> Option<(u32, String)> {
    let mut own: Vec<&str> = Vec::new();
    let mut found = None;
    for statement in body {
        statement.visit(&mut |inner| match &inner.kind {
            StatementKind::Let { name, .. } => own.push(name),
            StatementKind::Assign { target, .. } if !own.contains(&name(target)) => {
                let what = format!("{} keeps the value of the last neighbor", name(target));
                found.get_or_insert((inner.line, what));
            }
            _ => {}
        });
    }
    found.or_else(|| {
        let mut updates = updates_in(body, |_| true);
        updates.retain(|(name, _)| !own.contains(name));
        mixed_updates(body, &updates)
    })
}
