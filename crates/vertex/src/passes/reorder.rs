//! Vertices are laid out by degree. What the program does with their numbers it does with a
//! property that keeps the numbers of the graph.

use super::effects::{bound, fresh};
use super::Notes;
use crate::check::{find_order_dependence, SELF};
use crate::syntax::{
    Declaration, DeclarationKind, Expression, Statement, StatementKind, VertexNumbering,
    VertexProgram,
};

pub(super) fn apply(program: &mut VertexProgram, notes: &mut Notes) {
    if program.numbering == VertexNumbering::ByDegree {
        return;
    }
    let mut used: Vec<String> = program.declarations.iter().map(|d| d.name.clone()).collect();
    used.extend(bound(&program.body));
    let property = fresh("number", &used);
    let mut replaced = program.clone();
    let mut first = None;
    replace_numbers(&mut replaced.body, &property, &mut Vec::new(), &mut first);
    if let Some((line, why)) = find_order_dependence(&replaced) {
        notes.refused(line, why);
        return;
    }
    *program = replaced;
    program.numbering = VertexNumbering::ByDegree;
    notes.applied(1, "vertices are laid out by degree");
    if let Some(line) = first {
        let initial = Expression::Name(SELF.to_owned());
        let (kind, name) = (DeclarationKind::Vertex, property.clone());
        program.declarations.push(Declaration { line, kind, name, initial });
        notes.applied(line, format!("{property} keeps the numbers of vertices"));
    }
}

/// Numbers of vertices become reads of a property; `first` is the line of the first one.
fn replace_numbers(
    block: &mut [Statement],
    property: &str,
    vertices: &mut Vec<String>,
    first: &mut Option<u32>,
) {
    for statement in block {
        let line = statement.line;
        for expression in statement.expressions_mut() {
            expression.change(&mut |part| {
                if let Expression::Name(name) = part {
                    if vertices.contains(name) {
                        let (of, property) = (name.clone(), property.to_owned());
                        *part = Expression::Property { of, property };
                        first.get_or_insert(line);
                    }
                }
            });
        }
        let outer = vertices.len();
        match &statement.kind {
            StatementKind::ParallelFor { vertex, .. }
            | StatementKind::ForNeighbors { vertex, .. } => vertices.push(vertex.clone()),
            _ => {}
        }
        for inner in statement.blocks_mut() {
            replace_numbers(inner, property, vertices, first);
        }
        vertices.truncate(outer);
    }
}
