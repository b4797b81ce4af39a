//! Expressions, by how tightly operations bind.

use super::{Parsed, Parser, DEEPEST};
use crate::lex::Token;
use crate::syntax::{BinaryOperation, Direction, Expression, UnaryOperation};

impl Parser {
    pub(super) fn expression(&mut self) -> Parsed<Expression> {
        self.enter()?;
        let expression = self.operation(1)?;
        self.depth -= 1;
        Ok(expression)
    }

    /// Operations that bind at least as tightly as `least`.
    fn operation(&mut self, least: u8) -> Parsed<Expression> {
        const OPERATIONS: [BinaryOperation; 16] = [
            BinaryOperation::Or,
            BinaryOperation::And,
            BinaryOperation::Equal,
            BinaryOperation::NotEqual,
            BinaryOperation::LessOrEqual,
            BinaryOperation::GreaterOrEqual,
            BinaryOperation::Less,
            BinaryOperation::Greater,
            BinaryOperation::BitOr,
            BinaryOperation::BitXor,
            BinaryOperation::BitAnd,
            BinaryOperation::Add,
            BinaryOperation::Subtract,
            BinaryOperation::Multiply,
            BinaryOperation::Divide,
            BinaryOperation::Remainder,
        ];
        let mut left = self.operand()?;
        let mut chained = 0;
        loop {
            let found = OPERATIONS.into_iter().find(|operation| {
                let (symbol, binds) = operation.symbol();
                binds >= least && *self.peek() == Token::Symbol(symbol)
            });
            let Some(operation) = found else { return Ok(left) };
            chained += 1;
            // A chain makes a tree as deep as it is long.
            if chained > 4 * DEEPEST {
                return self.fail("a shorter expression");
            }
            self.next += 1;
            self.enter()?;
            let right = self.operation(operation.symbol().1 + 1)?;
            self.depth -= 1;
            left = Expression::Binary { operation, a: Box::new(left), b: Box::new(right) };
        }
    }

    fn operand(&mut self) -> Parsed<Expression> {
        self.enter()?;
        let operand = self.bare_operand()?;
        self.depth -= 1;
        Ok(operand)
    }

    fn bare_operand(&mut self) -> Parsed<Expression> {
        if let Token::Integer(value) = *self.peek() {
            self.next += 1;
            return Ok(Expression::Integer(value));
        }
        if self.take("(") {
            let inner = self.expression()?;
            self.expect(")")?;
            return Ok(inner);
        }
        for (symbol, operation) in [("-", UnaryOperation::Negate), ("!", UnaryOperation::Not)] {
            if self.take(symbol) {
                let a = Box::new(self.operand()?);
                return Ok(Expression::Unary { operation, a });
            }
        }
        for (word, value) in [
            ("infinity", Expression::Infinity),
            ("vertices", Expression::VertexCount),
            ("edges", Expression::EdgeCount),
        ] {
            if self.take_word(word) {
                return Ok(value);
            }
        }
        for (word, operation) in
            [("min", BinaryOperation::Minimum), ("max", BinaryOperation::Maximum)]
        {
            if self.take_word(word) {
                self.expect("(")?;
                let a = Box::new(self.expression()?);
                self.expect(",")?;
                let b = Box::new(self.expression()?);
                self.expect(")")?;
                return Ok(Expression::Binary { operation, a, b });
            }
        }
        if self.take_word("edge") {
            self.expect("(")?;
            let from = self.name()?;
            self.expect(",")?;
            let to = self.name()?;
            self.expect(")")?;
            return Ok(Expression::HasEdge { from, to });
        }
        let name = self.name_or("a value")?;
        if !self.take(".") {
            return Ok(Expression::Name(name));
        }
        Ok(match self.name()?.as_str() {
            "out_degree" => Expression::Degree { of: name, direction: Direction::Out },
            "in_degree" => Expression::Degree { of: name, direction: Direction::In },
            property => Expression::Property { of: name, property: property.to_owned() },
        })
    }
}
