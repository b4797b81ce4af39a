//! Loops over in-edges become loops over out-edges, and the reverse.
//!
//! ```text
//! parallel for v in vertices {            parallel for u in vertices {
//!     for u in v.in via e {                   if condition on u {
//!         if condition on u {         <=>         for v in u.neighbors via e {
//!             v.p op= value;                          atomic v.p op= value;
//! ```
//!
//! What else the loop does is put into parallel loops of its own, before and after.

use super::effects::{dependence, effects};
use super::{Notes, PassContext};
use crate::syntax::{
    AssignmentTarget, Direction, Expression, SpawnPlace, Statement, StatementKind, UpdateMode,
    VertexProgram,
};

pub(super) fn apply(program: &mut VertexProgram, context: PassContext, notes: &mut Notes) {
    flip_block(&mut program.body, context, notes);
}

fn flip_block(block: &mut Vec<Statement>, context: PassContext, notes: &mut Notes) {
    let mut index = 0;
    while index < block.len() {
        if let StatementKind::While { body, .. } = &mut block[index].kind {
            flip_block(body, context, notes);
        }
        let mut count = 1;
        if let Some(split) = split(&block[index]) {
            let line = block[index].line;
            match split.and_then(|parts| flip_parts(&parts, context)) {
                Ok((loops, direction)) => {
                    let to = if direction == Direction::In { "in-edges" } else { "out-edges" };
                    notes.applied(line, format!("follows {to} now"));
                    count = loops.len();
                    block.splice(index..=index, loops);
                }
                Err(why) => notes.refused(line, why),
            }
        }
        index += count;
    }
}

/// A parallel loop taken apart at its loop over neighbours.
pub(super) struct Parts<'a> {
    line: u32,
    vertex: &'a str,
    spawn: SpawnPlace,
    pub before: &'a [Statement],
    /// The loop over neighbours, perhaps within conditions.
    pub neighbors: &'a Statement,
    pub after: &'a [Statement],
}

/// Finds the loop over neighbours; `None` where there is none, an error where there are several.
pub(super) fn split(statement: &Statement) -> Option<Result<Parts<'_>, String>> {
    let StatementKind::ParallelFor { vertex, spawn, body } = &statement.kind else { return None };
    let has_loop = |statement: &Statement| {
        let mut loops = 0;
        statement.visit(&mut |inner| {
            loops += u32::from(matches!(inner.kind, StatementKind::ForNeighbors { .. }));
        });
        loops
    };
    let index = body.iter().position(|statement| has_loop(statement) > 0)?;
    if body.iter().map(has_loop).sum::<u32>() > 1 {
        return Some(Err("it has more than one loop over neighbors".to_owned()));
    }
    let (before, rest) = body.split_at(index);
    let (neighbors, after) = (&rest[0], &rest[1..]);
    let line = statement.line;
    Some(Ok(Parts { line, vertex, spawn: *spawn, before, neighbors, after }))
}

pub(super) fn flip_parts(
    parts: &Parts,
    context: PassContext,
) -> Result<(Vec<Statement>, Direction), String> {
    let middle = std::slice::from_ref(parts.neighbors);
    let blocks = [parts.before, middle, parts.after];
    let all = blocks.map(|block| effects(parts.vertex, block));
    for block in [parts.before, parts.after] {
        if block
            .iter()
            .any(|s| matches!(s.kind, StatementKind::Let { .. } | StatementKind::Fetch { .. }))
        {
            return Err("a local is shared with the loop over neighbors; use a property".into());
        }
    }
    for (first, second) in [(0, 1), (1, 2), (0, 2)] {
        if let Some(why) = dependence(&all[first], &all[second]) {
            return Err(format!("its parts cannot be separated: {why}"));
        }
    }
    let (flipped, direction) = flip_loop(parts, context)?;
    let alone = |body: &[Statement]| {
        (!body.is_empty()).then(|| Statement {
            line: parts.line,
            kind: StatementKind::ParallelFor {
                vertex: parts.vertex.to_owned(),
                spawn: parts.spawn,
                body: body.to_vec(),
            },
        })
    };
    let loops = alone(parts.before).into_iter().chain([flipped]).chain(alone(parts.after));
    Ok((loops.collect(), direction))
}

fn flip_loop(parts: &Parts, context: PassContext) -> Result<(Statement, Direction), String> {
    // Conditions around the loop are conditions on its outer vertex.
    let mut conditions: Vec<(u32, Expression)> = Vec::new();
    let mut inner = parts.neighbors;
    let (neighbor, edge, body, direction) = loop {
        match &inner.kind {
            StatementKind::If { condition, then, otherwise }
                if otherwise.is_empty() && then.len() == 1 =>
            {
                conditions.push((inner.line, condition.clone()));
                inner = &then[0];
            }
            StatementKind::ForNeighbors { vertex, edge, of, direction, body }
                if of == parts.vertex =>
            {
                break (vertex, edge, body, *direction);
            }
            _ => return Err("conditions around the loop over neighbors do more".to_owned()),
        }
    };
    let updated = match direction {
        Direction::In => parts.vertex,
        Direction::Out => neighbor.as_str(),
    };
    if direction == Direction::Out && context.graph.lists(Direction::In).is_none() {
        return Err("the graph keeps no in-edges; load it without inverse=no".to_owned());
    }
    let mut body = body.clone();
    check_body(&body, updated, direction)?;
    set_mode(&mut body, direction);
    let conditions = regroup(conditions, &mut body, neighbor);
    let line = inner.line;
    let other = if direction == Direction::In { Direction::Out } else { Direction::In };
    let mut flipped = Statement {
        line,
        kind: StatementKind::ForNeighbors {
            vertex: parts.vertex.to_owned(),
            edge: edge.clone(),
            of: neighbor.clone(),
            direction: other,
            body,
        },
    };
    for (line, condition) in conditions.into_iter().rev() {
        let (then, otherwise) = (vec![flipped], Vec::new());
        flipped = Statement { line, kind: StatementKind::If { condition, then, otherwise } };
    }
    let kind = StatementKind::ParallelFor {
        vertex: neighbor.clone(),
        spawn: parts.spawn,
        body: vec![flipped],
    };
    Ok((Statement { line: parts.line, kind }, other))
}

/// The body may only update properties of one of the two vertices, in any order.
fn check_body(body: &[Statement], updated: &str, direction: Direction) -> Result<(), String> {
    let mut problem = None;
    let mut targets: Vec<&str> = Vec::new();
    for statement in body {
        statement.visit(&mut |inner| {
            let line = inner.line;
            match &inner.kind {
                StatementKind::If { .. } => {}
                StatementKind::Update {
                    mode,
                    target: AssignmentTarget::Property { of, property },
                    ..
                } if of == updated
                    && (*mode == UpdateMode::Plain) == (direction == Direction::In) =>
                {
                    targets.push(property);
                }
                _ => {
                    problem.get_or_insert(format!(
                        "line {line} does more than update a property of {updated}"
                    ));
                }
            }
        });
    }
    for statement in body {
        statement.visit(&mut |inner| {
            for expression in inner.expressions() {
                expression.visit(&mut |part| {
                    if let Expression::Property { property, .. } = part {
                        if targets.contains(&property.as_str()) {
                            problem.get_or_insert(format!(
                                "line {} reads {property}, which the loop updates",
                                inner.line
                            ));
                        }
                    }
                });
            }
        });
    }
    problem.map_or(Ok(()), Err)
}

/// Updates of a thread's own vertex are plain, others atomic.
fn set_mode(body: &mut [Statement], direction: Direction) {
    let new = if direction == Direction::In { UpdateMode::Atomic } else { UpdateMode::Plain };
    for statement in body {
        statement.change(&mut |inner| {
            if let StatementKind::Update { mode, .. } = &mut inner.kind {
                *mode = new;
            }
        });
    }
}

/// Conditions on the old outer vertex go into the loop; those on the new one come out of it.
fn regroup(
    conditions: Vec<(u32, Expression)>,
    body: &mut Vec<Statement>,
    neighbor: &str,
) -> Vec<(u32, Expression)> {
    let mut outer = Vec::new();
    while let [Statement { line, kind: StatementKind::If { condition, then, otherwise } }] =
        body.as_slice()
    {
        let of_neighbor = condition.names().iter().all(|name| *name == neighbor);
        let reads = condition.names().contains(&neighbor);
        if !otherwise.is_empty() || !of_neighbor || !reads {
            break;
        }
        outer.push((*line, condition.clone()));
        *body = then.clone();
    }
    for (line, condition) in conditions.into_iter().rev() {
        let (then, otherwise) = (std::mem::take(body), Vec::new());
        body.push(Statement { line, kind: StatementKind::If { condition, then, otherwise } });
    }
    outer
}
