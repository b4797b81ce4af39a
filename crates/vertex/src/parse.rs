//! Text to syntax trees. The grammar is in `docs/guide/migratory.md`.

mod expressions;

use crate::lex::{lex, PlacedToken, Token};
use crate::syntax::{
    AssignmentTarget, Declaration, DeclarationKind, Direction, Expression, Reduction, ResultItem,
    SpawnPlace, Statement, StatementKind, UpdateMode, VertexNumbering, VertexProgram,
};
use crate::VertexError;

/// Blocks and brackets within each other at most.
const DEEPEST: u32 = 48;
/// Words that are no names.
pub const KEYWORDS: [&str; 28] = [
    "program",
    "parameter",
    "global",
    "vertex",
    "replicated",
    "edge",
    "let",
    "if",
    "else",
    "parallel",
    "for",
    "in",
    "vertices",
    "edges",
    "via",
    "while",
    "limit",
    "atomic",
    "remote",
    "return",
    "ratio",
    "min",
    "max",
    "infinity",
    "at",
    "data",
    "out",
    "neighbors",
];

/// Reads a program.
///
/// # Errors
/// [`VertexError::Syntax`] with line and column.
pub fn parse(text: &str) -> Result<VertexProgram, VertexError> {
    let mut parser = Parser { tokens: lex(text)?, next: 0, depth: 0 };
    parser.program()
}

struct Parser {
    tokens: Vec<PlacedToken>,
    next: usize,
    depth: u32,
}

type Parsed<T> = Result<T, VertexError>;

impl Parser {
    fn program(&mut self) -> Parsed<VertexProgram> {
        let mut program = VertexProgram::default();
        while let Some((line, comment)) = self.take_comment() {
            program.declarations.push(comment_declaration(line, comment));
        }
        self.expect_word("program")?;
        program.name = self.name()?;
        if self.take_word("by") {
            self.expect_word("degree")?;
            program.numbering = VertexNumbering::ByDegree;
        }
        self.expect(";")?;
        while let Some(declaration) = self.declaration()? {
            program.declarations.push(declaration);
        }
        let first = first_of_body(&program.declarations);
        let moved = program.declarations.drain(first..);
        program.body.extend(
            moved.map(|d| Statement { line: d.line, kind: StatementKind::Comment(d.name) }),
        );
        while !self.peek_is(&Token::End) && !self.peek_word("return") {
            program.body.push(self.statement()?);
        }
        if self.take_word("return") {
            loop {
                program.results.push(self.result()?);
                if !self.take(",") {
                    break;
                }
            }
            self.expect(";")?;
        }
        while self.take_comment().is_some() {}
        if !self.peek_is(&Token::End) {
            return self.fail("the end of the program after its results");
        }
        Ok(program)
    }

    fn declaration(&mut self) -> Parsed<Option<Declaration>> {
        if let Some((line, comment)) = self.take_comment() {
            return Ok(Some(comment_declaration(line, comment)));
        }
        let line = self.line();
        let kind = match self.peek() {
            Token::Word(word) => match word.as_str() {
                "parameter" => DeclarationKind::Parameter,
                "global" => DeclarationKind::Global,
                "vertex" => DeclarationKind::Vertex,
                "replicated" => DeclarationKind::Replicated,
                "edge" => DeclarationKind::Edge,
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        self.next += 1;
        let name = self.name()?;
        let mut initial = Expression::Integer(0);
        if kind != DeclarationKind::Edge && self.take("=") {
            initial = self.expression()?;
        }
        self.expect(";")?;
        Ok(Some(Declaration { line, kind, name, initial }))
    }

    fn block(&mut self) -> Parsed<Vec<Statement>> {
        self.expect("{")?;
        self.enter()?;
        let mut statements = Vec::new();
        while !self.take("}") {
            statements.push(self.statement()?);
        }
        self.depth -= 1;
        Ok(statements)
    }

    fn statement(&mut self) -> Parsed<Statement> {
        if let Some((line, comment)) = self.take_comment() {
            return Ok(Statement { line, kind: StatementKind::Comment(comment) });
        }
        let line = self.line();
        let kind = if self.take_word("let") {
            self.binding()?
        } else if self.take_word("if") {
            self.condition()?
        } else if self.take_word("parallel") {
            self.expect_word("for")?;
            let vertex = self.name()?;
            self.expect_word("in")?;
            self.expect_word("vertices")?;
            let spawn = if self.take_word("at") {
                self.expect_word("data")?;
                SpawnPlace::AtData
            } else {
                SpawnPlace::Here
            };
            StatementKind::ParallelFor { vertex, spawn, body: self.block()? }
        } else if self.take_word("for") {
            self.neighbors()?
        } else if self.take_word("while") {
            let condition = self.expression()?;
            self.expect_word("limit")?;
            let limit = self.expression()?;
            StatementKind::While { condition, limit, body: self.block()? }
        } else {
            self.change()?
        };
        Ok(Statement { line, kind })
    }

    fn binding(&mut self) -> Parsed<StatementKind> {
        let name = self.name()?;
        self.expect("=")?;
        let kind = if self.take_word("atomic") {
            let target = self.target()?;
            let Some(reduction) = self.take_reduction() else {
                return self.fail("+=, min=, max=, &=, |= or ^=");
            };
            StatementKind::Fetch { name, target, reduction, value: self.expression()? }
        } else {
            StatementKind::Let { name, value: self.expression()? }
        };
        self.expect(";")?;
        Ok(kind)
    }

    fn condition(&mut self) -> Parsed<StatementKind> {
        let condition = self.expression()?;
        let then = self.block()?;
        let mut otherwise = Vec::new();
        if self.take_word("else") {
            let line = self.line();
            if self.take_word("if") {
                self.enter()?;
                otherwise.push(Statement { line, kind: self.condition()? });
                self.depth -= 1;
            } else {
                otherwise = self.block()?;
            }
        }
        Ok(StatementKind::If { condition, then, otherwise })
    }

    fn neighbors(&mut self) -> Parsed<StatementKind> {
        let vertex = self.name()?;
        self.expect_word("in")?;
        let of = self.name()?;
        self.expect(".")?;
        let direction = if self.take_word("in") {
            Direction::In
        } else if self.take_word("out") || self.take_word("neighbors") {
            Direction::Out
        } else {
            return self.fail("neighbors, out or in");
        };
        let edge = if self.take_word("via") { Some(self.name()?) } else { None };
        Ok(StatementKind::ForNeighbors { vertex, edge, of, direction, body: self.block()? })
    }

    fn change(&mut self) -> Parsed<StatementKind> {
        let mode = if self.take_word("atomic") {
            UpdateMode::Atomic
        } else if self.take_word("remote") {
            UpdateMode::Remote
        } else {
            UpdateMode::Plain
        };
        let target = self.target()?;
        let kind = if let Some(reduction) = self.take_reduction() {
            StatementKind::Update { mode, target, reduction, value: self.expression()? }
        } else if mode == UpdateMode::Plain && self.take("=") {
            StatementKind::Assign { target, value: self.expression()? }
        } else {
            return self.fail("=, +=, min=, max=, &=, |= or ^=");
        };
        self.expect(";")?;
        Ok(kind)
    }

    fn target(&mut self) -> Parsed<AssignmentTarget> {
        let name = self.name()?;
        if !self.take(".") {
            return Ok(AssignmentTarget::Name(name));
        }
        Ok(AssignmentTarget::Property { of: name, property: self.name()? })
    }

    fn take_reduction(&mut self) -> Option<Reduction> {
        let simple = [
            ("+=", Reduction::Add),
            ("&=", Reduction::BitAnd),
            ("|=", Reduction::BitOr),
            ("^=", Reduction::BitXor),
        ];
        if let Some((_, reduction)) = simple.into_iter().find(|(symbol, _)| self.take(symbol)) {
            return Some(reduction);
        }
        let words = [("min", Reduction::Minimum), ("max", Reduction::Maximum)];
        let after = self.tokens.get(self.next + 1).map(|t| &t.token);
        let (_, reduction) = words
            .into_iter()
            .find(|(word, _)| self.peek_word(word) && after == Some(&Token::Symbol("=")))?;
        self.next += 2;
        Some(reduction)
    }

    fn result(&mut self) -> Parsed<ResultItem> {
        let after = self.tokens.get(self.next + 1).map(|t| &t.token);
        let mut name = None;
        if after == Some(&Token::Symbol("=")) {
            name = Some(self.name()?);
            self.expect("=")?;
        }
        let (value, denominator) = if self.take_word("ratio") {
            self.expect("(")?;
            let value = self.expression()?;
            self.expect(",")?;
            let denominator = self.expression()?;
            self.expect(")")?;
            (value, Some(denominator))
        } else {
            (self.expression()?, None)
        };
        let name = match (name, &value) {
            (Some(name), _) => name,
            (None, Expression::Name(name)) if denominator.is_none() => name.clone(),
            _ => return self.fail("NAME = before a result that is no name"),
        };
        Ok(ResultItem { name, value, denominator })
    }

    fn enter(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > DEEPEST * 4 {
            return self.fail("fewer blocks and brackets within each other");
        }
        Ok(())
    }

    fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |placed| &placed.token)
    }

    fn peek_is(&self, token: &Token) -> bool {
        self.peek() == token
    }

    fn peek_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Word(found) if found == word)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.next).map_or(0, |placed| placed.line)
    }

    fn take(&mut self, symbol: &str) -> bool {
        self.skip_inner_comments();
        let taken = matches!(self.peek(), Token::Symbol(found) if *found == symbol);
        self.next += usize::from(taken);
        taken
    }

    fn take_word(&mut self, word: &str) -> bool {
        let taken = self.peek_word(word);
        self.next += usize::from(taken);
        taken
    }

    fn take_comment(&mut self) -> Option<(u32, String)> {
        let line = self.line();
        let Token::Comment(text) = self.peek() else { return None };
        let text = text.clone();
        self.next += 1;
        Some((line, text))
    }

    /// Comments in the middle of a statement are dropped where a symbol follows.
    fn skip_inner_comments(&mut self) {
        let mut ahead = self.next;
        while matches!(self.tokens.get(ahead), Some(t) if matches!(t.token, Token::Comment(_))) {
            ahead += 1;
        }
        let symbol = |t: &PlacedToken| matches!(&t.token, Token::Symbol(s) if *s != "}");
        if self.tokens.get(ahead).is_some_and(symbol) {
            self.next = ahead;
        }
    }

    fn name(&mut self) -> Parsed<String> {
        self.name_or("a name")
    }

    fn name_or(&mut self, expected: &str) -> Parsed<String> {
        match self.peek() {
            Token::Word(word) if !KEYWORDS.contains(&word.as_str()) => {
                let word = word.clone();
                self.next += 1;
                Ok(word)
            }
            _ => self.fail(expected),
        }
    }

    fn expect(&mut self, symbol: &str) -> Parsed<()> {
        if self.take(symbol) {
            return Ok(());
        }
        self.fail(&format!("{symbol:?}"))
    }

    fn expect_word(&mut self, word: &str) -> Parsed<()> {
        if self.take_word(word) {
            return Ok(());
        }
        self.fail(&format!("{word:?}"))
    }

    fn fail<T>(&self, expected: &str) -> Parsed<T> {
        let (line, column) =
            self.tokens.get(self.next).map_or((0, 0), |placed| (placed.line, placed.column));
        let found = self.peek().describe();
        Err(VertexError::Syntax { line, column, found, expected: expected.to_owned() })
    }
}

/// Where the comments begin that stand before the first statement, and belong to it; those of a
/// program without declarations stand above its name.
fn first_of_body(declarations: &[Declaration]) -> usize {
    let declared = declarations.iter().rposition(|d| d.kind != DeclarationKind::Comment);
    declared.map_or(declarations.len(), |last| {
        let after = declarations[last + 1..].iter();
        last + 1 + after.take_while(|d| d.line == declarations[last].line).count()
    })
}

fn comment_declaration(line: u32, text: String) -> Declaration {
    let initial = Expression::Integer(0);
    Declaration { line, kind: DeclarationKind::Comment, name: text, initial }
}
