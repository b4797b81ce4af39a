//! Fusion of parallel loops over vertices.

use super::effects::{bound, dependence, effects, fresh, rename};
use super::Notes;
use crate::syntax::{Statement, StatementKind, VertexProgram};

pub(super) fn apply(program: &mut VertexProgram, notes: &mut Notes) {
    let names = program.declarations.iter().map(|d| d.name.clone()).collect::<Vec<_>>();
    fuse_block(&mut program.body, &names, notes);
}

fn fuse_block(block: &mut Vec<Statement>, declared: &[String], notes: &mut Notes) {
    let mut index = 0;
    while index + 1 < block.len() {
        let lines = (block[index].line, block[index + 1].line);
        match fuse(&block[index], &block[index + 1], declared) {
            Some(Ok(fused)) => {
                notes.applied(lines.1, format!("fused with the loop at line {}", lines.0));
                block[index] = fused;
                block.remove(index + 1);
            }
            Some(Err(why)) => {
                notes.refused(lines.1, why);
                index += 1;
            }
            None => index += 1,
        }
    }
    for statement in block {
        if let StatementKind::While { body, .. } = &mut statement.kind {
            fuse_block(body, declared, notes);
        }
    }
}

/// Both loops in one; why not; or `None` where they are not two parallel loops.
fn fuse(
    first: &Statement,
    second: &Statement,
    declared: &[String],
) -> Option<Result<Statement, String>> {
    let (
        StatementKind::ParallelFor { vertex, spawn, body },
        StatementKind::ParallelFor { vertex: other, spawn: other_spawn, body: more },
    ) = (&first.kind, &second.kind)
    else {
        return None;
    };
    if spawn != other_spawn {
        return Some(Err("the loops spawn their threads at different places".to_owned()));
    }
    if let Some(why) = dependence(&effects(vertex, body), &effects(other, more)) {
        return Some(Err(why));
    }
    let mut used: Vec<String> = bound(body);
    used.push(vertex.clone());
    let mut more = more.clone();
    let mut all = [declared, &used, &bound(&more)].concat();
    for name in bound(&more) {
        if used.contains(&name) {
            let fresh = fresh(&name, &all);
            rename(&mut more, &name, &fresh);
            all.push(fresh);
        }
    }
    rename(&mut more, other, vertex);
    let body = body.iter().cloned().chain(more).collect();
    let kind = StatementKind::ParallelFor { vertex: vertex.clone(), spawn: *spawn, body };
    Some(Ok(Statement { line: first.line, kind }))
}
