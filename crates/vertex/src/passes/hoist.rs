//! Property reads move out of loops over neighbours.

use super::effects::{bound, effects, fresh, EffectKind};
use super::Notes;
use crate::syntax::{Expression, Statement, StatementKind, VertexProgram};

pub(super) fn apply(program: &mut VertexProgram, notes: &mut Notes) {
    let declared = program.declarations.iter().map(|d| d.name.clone()).collect::<Vec<_>>();
    for statement in &mut program.body {
        statement.change(&mut |inner| {
            if let StatementKind::ParallelFor { vertex, body, .. } = &mut inner.kind {
                let mut written = Vec::new();
                for effect in effects(vertex, body) {
                    if effect.kind != EffectKind::Read {
                        written.push(effect.name);
                    }
                }
                let mut used = [declared.clone(), bound(body), vec![vertex.clone()]].concat();
                let known = vec![vertex.clone()];
                hoist_block(body, &known, &written, &mut used, notes);
            }
        });
    }
}

/// Hoists in front of each loop of a block what it reads of vertices that are known before it.
fn hoist_block(
    block: &mut Vec<Statement>,
    known: &[String],
    written: &[String],
    used: &mut Vec<String>,
    notes: &mut Notes,
) {
    let mut index = 0;
    while index < block.len() {
        let mut before = Vec::new();
        let statement = &mut block[index];
        let line = statement.line;
        if let StatementKind::ForNeighbors { vertex, body, .. } = &mut statement.kind {
            for (of, property) in reads_in(body, known) {
                if let Some(name) = written.iter().find(|name| **name == property) {
                    notes.refused(line, format!("{name} is written in the same loop"));
                    continue;
                }
                let local = fresh(&format!("{of}_{property}_"), used);
                used.push(local.clone());
                replace_reads(body, &of, &property, &local);
                notes.applied(line, format!("{of}.{property} is read before the loop"));
                let value = Expression::Property { of, property };
                before.push(Statement { line, kind: StatementKind::Let { name: local, value } });
            }
            let inner = [known, std::slice::from_ref(vertex)].concat();
            hoist_block(body, &inner, written, used, notes);
        } else {
            for inner in statement.blocks_mut() {
                hoist_block(inner, known, written, used, notes);
            }
        }
        let hoisted = before.len();
        block.splice(index..index, before);
        index += hoisted + 1;
    }
}

/// Properties of known vertices that statements read, each once.
fn reads_in(body: &[Statement], known: &[String]) -> Vec<(String, String)> {
    let mut reads: Vec<(String, String)> = Vec::new();
    for statement in body {
        statement.visit(&mut |inner| {
            for expression in inner.expressions() {
                expression.visit(&mut |part| {
                    if let Expression::Property { of, property } = part {
                        let read = (of.clone(), property.clone());
                        if known.contains(of) && !reads.contains(&read) {
                            reads.push(read);
                        }
                    }
                });
            }
        });
    }
    reads
}

fn replace_reads(body: &mut [Statement], of: &str, property: &str, local: &str) {
    for statement in body {
        statement.change(&mut |inner| {
            for expression in inner.expressions_mut() {
                expression.change(&mut |part| {
                    let found = matches!(part, Expression::Property { of: o, property: p }
                        if o == of && p == property);
                    if found {
                        *part = Expression::Name(local.to_owned());
                    }
                });
            }
        });
    }
}
