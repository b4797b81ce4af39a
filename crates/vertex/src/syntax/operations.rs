//! Operations on values, and what they compute.

/// An operation on one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnaryOperation {
    /// `-a`.
    Negate,
    /// `!a`: 1 for 0, else 0.
    Not,
}

/// An operation on two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BinaryOperation {
    /// `a + b`.
    Add,
    /// `a - b`.
    Subtract,
    /// `a * b`.
    Multiply,
    /// `a / b`, towards zero.
    Divide,
    /// `a % b`.
    Remainder,
    /// `a & b`.
    BitAnd,
    /// `a | b`.
    BitOr,
    /// `a ^ b`.
    BitXor,
    /// `min(a, b)`.
    Minimum,
    /// `max(a, b)`.
    Maximum,
    /// `a == b`.
    Equal,
    /// `a != b`.
    NotEqual,
    /// `a < b`.
    Less,
    /// `a <= b`.
    LessOrEqual,
    /// `a > b`.
    Greater,
    /// `a >= b`.
    GreaterOrEqual,
    /// `a && b`.
    And,
    /// `a || b`.
    Or,
}

/// How an update changes its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// `+=`.
    Add,
    /// `min=`.
    Minimum,
    /// `max=`.
    Maximum,
    /// `&=`.
    BitAnd,
    /// `|=`.
    BitOr,
    /// `^=`.
    BitXor,
}

impl Reduction {
    /// The value that changes nothing.
    #[must_use]
    pub const fn identity(self) -> i64 {
        match self {
            Self::Add | Self::BitOr | Self::BitXor => 0,
            Self::Minimum => i64::MAX,
            Self::Maximum => i64::MIN,
            Self::BitAnd => -1,
        }
    }

    /// Its value for two operands.
    #[must_use]
    pub fn apply(self, a: i64, b: i64) -> i64 {
        match self {
            Self::Add => a.wrapping_add(b),
            Self::Minimum => a.min(b),
            Self::Maximum => a.max(b),
            Self::BitAnd => a & b,
            Self::BitOr => a | b,
            Self::BitXor => a ^ b,
        }
    }

    /// As it is written.
    #[must_use]
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+=",
            Self::Minimum => "min=",
            Self::Maximum => "max=",
            Self::BitAnd => "&=",
            Self::BitOr => "|=",
            Self::BitXor => "^=",
        }
    }
}

impl BinaryOperation {
    /// Its value for two operands; `&&` and `||` with both.
    #[must_use]
    pub fn apply(self, a: i64, b: i64) -> i64 {
        match self {
            Self::Add => a.wrapping_add(b),
            Self::Subtract => a.wrapping_sub(b),
            Self::Multiply => a.wrapping_mul(b),
            Self::Divide if b == 0 => 0,
            Self::Divide => a.wrapping_div(b),
            Self::Remainder if b == 0 => 0,
            Self::Remainder => a.wrapping_rem(b),
            Self::BitAnd => a & b,
            Self::BitOr => a | b,
            Self::BitXor => a ^ b,
            Self::Minimum => a.min(b),
            Self::Maximum => a.max(b),
            Self::Equal => i64::from(a == b),
            Self::NotEqual => i64::from(a != b),
            Self::Less => i64::from(a < b),
            Self::LessOrEqual => i64::from(a <= b),
            Self::Greater => i64::from(a > b),
            Self::GreaterOrEqual => i64::from(a >= b),
            Self::And => i64::from(a != 0 && b != 0),
            Self::Or => i64::from(a != 0 || b != 0),
        }
    }

    /// As it is written, and how tightly it binds: more binds tighter.
    #[must_use]
    pub const fn symbol(self) -> (&'static str, u8) {
        match self {
            Self::Or => ("||", 1),
            Self::And => ("&&", 2),
            Self::Equal => ("==", 3),
            Self::NotEqual => ("!=", 3),
            Self::Less => ("<", 3),
            Self::LessOrEqual => ("<=", 3),
            Self::Greater => (">", 3),
            Self::GreaterOrEqual => (">=", 3),
            Self::BitOr => ("|", 4),
            Self::BitXor => ("^", 5),
            Self::BitAnd => ("&", 6),
            Self::Add => ("+", 7),
            Self::Subtract => ("-", 7),
            Self::Multiply => ("*", 8),
            Self::Divide => ("/", 8),
            Self::Remainder => ("%", 8),
            Self::Minimum => ("min", 9),
            Self::Maximum => ("max", 9),
        }
    }
}
