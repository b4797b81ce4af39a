//! Loops that push from active vertices get a second form that pulls, and each round takes one of
//! them (Beamer, Asanovic, Patterson: Direction-Optimizing Breadth-First Search, SC 2012).
//!
//! ```text
//! parallel for v in vertices {            active = 0;
//!     if v is active {                    parallel for v in vertices {
//!         for u in v.neighbors {    =>        if v is active { active += v.out_degree; }
//!             atomic u.p op= value;       }
//!                                         if active * 2 > edges { the loop flipped } else { it }
//! ```

use super::effects::{bound, fresh};
use super::flip::{flip_parts, split};
use super::{Notes, PassContext};
use crate::syntax::{
    AssignmentTarget, BinaryOperation, Declaration, DeclarationKind, Direction, Expression,
    Reduction, Statement, StatementKind, UpdateMode, VertexProgram,
};

/// A loop pulls where more than one edge in so many leaves an active vertex. Both forms of a loop
/// without early exit pass the same number of edges at 1, and pulling needs no atomics. At half
/// (one), it never pulls; at double it pulls in more rounds.
const ACTIVE_PART: i64 = 2;

pub(super) fn apply(program: &mut VertexProgram, context: PassContext, notes: &mut Notes) {
    let mut used: Vec<String> = program.declarations.iter().map(|d| d.name.clone()).collect();
    used.extend(bound(&program.body));
    let mut counts = Vec::new();
    split_block(&mut program.body, context, &mut used, &mut counts, notes);
    for (line, name) in counts {
        let (kind, initial) = (DeclarationKind::Global, Expression::Integer(0));
        program.declarations.push(Declaration { line, kind, name, initial });
    }
}

fn split_block(
    block: &mut Vec<Statement>,
    context: PassContext,
    used: &mut Vec<String>,
    counts: &mut Vec<(u32, String)>,
    notes: &mut Notes,
) {
    let mut index = 0;
    while index < block.len() {
        if let StatementKind::While { body, .. } = &mut block[index].kind {
            split_block(body, context, used, counts, notes);
        }
        let line = block[index].line;
        match both_forms(&block[index], context) {
            Some(Ok((active, pull))) => {
                let count = fresh("active_edges", used);
                used.push(count.clone());
                let push = block[index].clone();
                let chosen = choose(push, pull, active, &count);
                counts.push((line, count));
                notes.applied(line, "pulls where most edges are active, else pushes");
                let added = chosen.len();
                block.splice(index..=index, chosen);
                index += added;
            }
            Some(Err(why)) => {
                notes.refused(line, why);
                index += 1;
            }
            None => index += 1,
        }
    }
}

/// The condition of active vertices and the loop that pulls; `None` where the statement is no loop
/// that pushes.
fn both_forms(
    statement: &Statement,
    context: PassContext,
) -> Option<Result<(Expression, Statement), String>> {
    let parts = match split(statement)? {
        Ok(parts) => parts,
        Err(why) => return Some(Err(why)),
    };
    let mut pushes = false;
    parts.neighbors.visit(&mut |inner| {
        pushes |=
            matches!(inner.kind, StatementKind::ForNeighbors { direction: Direction::Out, .. });
    });
    if !pushes {
        return Some(Err("it pulls; flip it first".to_owned()));
    }
    if !parts.before.is_empty() || !parts.after.is_empty() {
        return Some(Err("it does more than its loop over neighbors".to_owned()));
    }
    let StatementKind::If { condition, otherwise, .. } = &parts.neighbors.kind else {
        return Some(Err("no condition says which vertices are active".to_owned()));
    };
    if !otherwise.is_empty() {
        return Some(Err("vertices that are not active do something too".to_owned()));
    }
    let flipped = flip_parts(&parts, context);
    Some(flipped.and_then(|(loops, _)| match <[Statement; 1]>::try_from(loops) {
        Ok([pull]) => Ok((condition.clone(), pull)),
        Err(_) => Err("it does more than its loop over neighbors".to_owned()),
    }))
}

/// Counts the edges of active vertices, and takes one of two loops.
fn choose(push: Statement, pull: Statement, active: Expression, count: &str) -> Vec<Statement> {
    let StatementKind::ParallelFor { vertex, spawn, .. } = &push.kind else { return vec![push] };
    let (line, spawn, vertex) = (push.line, *spawn, vertex.clone());
    let at = |kind| Statement { line, kind };
    let target = || AssignmentTarget::Name(count.to_owned());
    let degree = Expression::Degree { of: vertex.clone(), direction: Direction::Out };
    let add = at(StatementKind::Update {
        mode: UpdateMode::Plain,
        target: target(),
        reduction: Reduction::Add,
        value: degree,
    });
    let sum = at(StatementKind::If { condition: active, then: vec![add], otherwise: Vec::new() });
    let binary = |operation, a, b| Expression::Binary { operation, a: Box::new(a), b: Box::new(b) };
    let times = binary(
        BinaryOperation::Multiply,
        Expression::Name(count.to_owned()),
        Expression::Integer(ACTIVE_PART),
    );
    let condition = binary(BinaryOperation::Greater, times, Expression::EdgeCount);
    vec![
        at(StatementKind::Assign { target: target(), value: Expression::Integer(0) }),
        at(StatementKind::ParallelFor { vertex, spawn, body: vec![sum] }),
        at(StatementKind::If { condition, then: vec![pull], otherwise: vec![push] }),
    ]
}
