//! Syntax trees to text, in the one layout that all programs have.

use crate::lex::{lex, PlacedToken, Token};
use crate::parse::parse;
use crate::syntax::{
    AssignmentTarget, BinaryOperation, DeclarationKind, Direction, Expression, SpawnPlace,
    Statement, StatementKind, UnaryOperation, UpdateMode, VertexNumbering, VertexProgram,
};
use crate::VertexError;
use std::fmt::Write;

/// A line of a program's text, with the line of its statement in the text that was read; 0: none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormattedLine {
    /// Without the end of the line.
    pub text: String,
    /// The statement's line.
    pub line: u32,
}

/// A text in the layout of [`format`], with all of its comments.
///
/// # Errors
/// [`VertexError::Syntax`]; also for a comment within a statement, which the tree does not keep.
pub fn format_text(text: &str) -> Result<String, VertexError> {
    let formatted = format(&parse(text)?);
    let is_comment = |placed: &PlacedToken| matches!(placed.token, Token::Comment(_));
    let mut kept: Vec<Token> =
        lex(&formatted)?.into_iter().filter(is_comment).map(|placed| placed.token).collect();
    for comment in lex(text)?.into_iter().filter(is_comment) {
        let Some(at) = kept.iter().position(|token| *token == comment.token) else {
            return Err(VertexError::Syntax {
                line: comment.line,
                column: comment.column,
                found: "a comment that would be lost".to_owned(),
                expected: "one above or after a statement".to_owned(),
            });
        };
        kept.swap_remove(at);
    }
    Ok(formatted)
}

/// A program's text.
#[must_use]
pub fn format(program: &VertexProgram) -> String {
    let lines = format_lines(program);
    lines.into_iter().fold(String::new(), |text, line| text + &line.text + "\n")
}

/// A program's text, line by line.
#[must_use]
pub fn format_lines(program: &VertexProgram) -> Vec<FormattedLine> {
    let mut lines = Vec::new();
    let mut put = |text: String, line: u32| lines.push(FormattedLine { text, line });
    let mut declarations = program.declarations.iter().peekable();
    // Comments above the program's name.
    let named = program.declarations.iter().position(|d| d.kind != DeclarationKind::Comment);
    let head = named.map_or(program.declarations.len(), |first| first);
    for declaration in declarations.by_ref().take(head) {
        put(format!("// {}", declaration.name).trim_end().to_owned(), declaration.line);
    }
    let numbering = match program.numbering {
        VertexNumbering::Given => "",
        VertexNumbering::ByDegree => " by degree",
    };
    put(format!("program {}{numbering};", program.name), 0);
    for d in declarations {
        let initial = expression(&d.initial);
        let text = match d.kind {
            DeclarationKind::Parameter => format!("parameter {} = {initial};", d.name),
            DeclarationKind::Global => format!("global {} = {initial};", d.name),
            DeclarationKind::Vertex => format!("vertex {} = {initial};", d.name),
            DeclarationKind::Replicated => format!("replicated {} = {initial};", d.name),
            DeclarationKind::Edge => format!("edge {};", d.name),
            DeclarationKind::Comment => {
                comment(&d.name, "", d.line, &mut lines);
                continue;
            }
        };
        lines.push(FormattedLine { text, line: d.line });
    }
    if !program.body.is_empty() {
        lines.push(FormattedLine { text: String::new(), line: 0 });
    }
    block(&program.body, 0, &mut lines);
    if !program.results.is_empty() {
        let results: Vec<String> = program
            .results
            .iter()
            .map(|result| {
                let value = expression(&result.value);
                match &result.denominator {
                    Some(below) => {
                        format!("{} = ratio({value}, {})", result.name, expression(below))
                    }
                    None if value == result.name => value,
                    None => format!("{} = {value}", result.name),
                }
            })
            .collect();
        let text = format!("return {};", results.join(", "));
        lines.push(FormattedLine { text, line: 0 });
    }
    lines
}

/// Puts a comment after what stands on its line, else on a line of its own.
fn comment(text: &str, indent: &str, line: u32, lines: &mut Vec<FormattedLine>) {
    let text = format!("// {text}").trim_end().to_owned();
    let before = lines.last_mut().filter(|last| line > 0 && last.line == line);
    match before.filter(|last| !last.text.contains("//")) {
        Some(last) => last.text = format!("{} {text}", last.text),
        None => lines.push(FormattedLine { text: format!("{indent}{text}"), line }),
    }
}

fn block(statements: &[Statement], depth: usize, lines: &mut Vec<FormattedLine>) {
    for one in statements {
        statement(one, depth, lines);
    }
}

fn statement(statement: &Statement, depth: usize, lines: &mut Vec<FormattedLine>) {
    let indent = "    ".repeat(depth);
    let line = statement.line;
    if let StatementKind::Comment(text) = &statement.kind {
        return comment(text, &indent, line, lines);
    }
    let mut put = |text: String, line: u32| {
        let text = format!("{indent}{text}").trim_end().to_owned();
        lines.push(FormattedLine { text, line });
    };
    match &statement.kind {
        StatementKind::Comment(_) => {}
        StatementKind::Let { name, value } => {
            put(format!("let {name} = {};", expression(value)), line);
        }
        StatementKind::Fetch { name, target: t, reduction, value } => {
            let (t, op) = (target(t), reduction.symbol());
            put(format!("let {name} = atomic {t} {op} {};", expression(value)), line);
        }
        StatementKind::Assign { target: t, value } => {
            put(format!("{} = {};", target(t), expression(value)), line);
        }
        StatementKind::Update { mode, target: t, reduction, value } => {
            let mode = match mode {
                UpdateMode::Plain => "",
                UpdateMode::Atomic => "atomic ",
                UpdateMode::Remote => "remote ",
            };
            let (t, op) = (target(t), reduction.symbol());
            put(format!("{mode}{t} {op} {};", expression(value)), line);
        }
        StatementKind::If { condition, then, otherwise } => {
            put(format!("if {} {{", expression(condition)), line);
            block(then, depth + 1, lines);
            if !otherwise.is_empty() {
                lines.push(FormattedLine { text: format!("{indent}}} else {{"), line: 0 });
                block(otherwise, depth + 1, lines);
            }
            lines.push(FormattedLine { text: format!("{indent}}}"), line: 0 });
        }
        StatementKind::ParallelFor { .. }
        | StatementKind::ForNeighbors { .. }
        | StatementKind::While { .. } => {
            put(loop_head(&statement.kind), line);
            statement.blocks().into_iter().for_each(|body| block(body, depth + 1, lines));
            lines.push(FormattedLine { text: format!("{indent}}}"), line: 0 });
        }
    }
}

fn loop_head(kind: &StatementKind) -> String {
    match kind {
        StatementKind::ParallelFor { vertex, spawn, .. } => {
            let place = if *spawn == SpawnPlace::AtData { " at data" } else { "" };
            format!("parallel for {vertex} in vertices{place} {{")
        }
        StatementKind::ForNeighbors { vertex, edge, of, direction, .. } => {
            let list = if *direction == Direction::In { "in" } else { "neighbors" };
            let via = edge.as_ref().map_or(String::new(), |edge| format!(" via {edge}"));
            format!("for {vertex} in {of}.{list}{via} {{")
        }
        StatementKind::While { condition, limit, .. } => {
            format!("while {} limit {} {{", expression(condition), expression(limit))
        }
        _ => String::new(),
    }
}

fn target(target: &AssignmentTarget) -> String {
    match target {
        AssignmentTarget::Name(name) => name.clone(),
        AssignmentTarget::Property { of, property } => format!("{of}.{property}"),
    }
}

/// An expression's text.
#[must_use]
pub fn expression(expression: &Expression) -> String {
    let mut text = String::new();
    write_expression(expression, 0, &mut text);
    text
}

/// Brackets where the surroundings bind tighter than `least`.
fn write_expression(expression: &Expression, least: u8, text: &mut String) {
    // Writing to a string cannot fail.
    let _ = match expression {
        // A negative number reads back as a negated one.
        Expression::Integer(value) if *value < 0 => write!(text, "({value})"),
        Expression::Integer(value) => write!(text, "{value}"),
        Expression::Infinity => write!(text, "infinity"),
        Expression::VertexCount => write!(text, "vertices"),
        Expression::EdgeCount => write!(text, "edges"),
        Expression::Name(name) => write!(text, "{name}"),
        Expression::Property { of, property } => write!(text, "{of}.{property}"),
        Expression::Degree { of, direction: Direction::Out } => write!(text, "{of}.out_degree"),
        Expression::Degree { of, direction: Direction::In } => write!(text, "{of}.in_degree"),
        Expression::HasEdge { from, to } => write!(text, "edge({from}, {to})"),
        Expression::Unary { operation, a } => {
            text.push_str(if *operation == UnaryOperation::Not { "!" } else { "-" });
            write_expression(a, 10, text);
            Ok(())
        }
        Expression::Binary {
            operation: operation @ (BinaryOperation::Minimum | BinaryOperation::Maximum),
            a,
            b,
        } => {
            text.push_str(operation.symbol().0);
            text.push('(');
            write_expression(a, 0, text);
            text.push_str(", ");
            write_expression(b, 0, text);
            text.push(')');
            Ok(())
        }
        Expression::Binary { operation, a, b } => {
            let (symbol, binds) = operation.symbol();
            let open = binds < least;
            text.push_str(if open { "(" } else { "" });
            write_expression(a, binds, text);
            let _ = write!(text, " {symbol} ");
            write_expression(b, binds + 1, text);
            text.push_str(if open { ")" } else { "" });
            Ok(())
        }
    };
}
