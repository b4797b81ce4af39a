//! IEEE 754 arithmetic in integers, as the RISC-V manual (volume I, chapters F and D) asks:
//! all five rounding modes, accrued flags, tininess detected after rounding, canonical NaNs.
//!
//! A finite number is `significand * 2^exponent`; each operation computes it exactly, or with one
//! sticky bit for what lies below, and rounds once in [`FloatFormat::round`].

/// Invalid operation, `fflags` bit 4.
pub const INVALID: u8 = 16;
/// Division by zero, `fflags` bit 3.
pub const DIVIDE_BY_ZERO: u8 = 8;
/// Overflow, `fflags` bit 2.
pub const OVERFLOW: u8 = 4;
/// Underflow, `fflags` bit 1.
pub const UNDERFLOW: u8 = 2;
/// Inexact, `fflags` bit 0.
pub const INEXACT: u8 = 1;

/// Rounding mode, in the encoding of `frm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To nearest, ties to even.
    NearestEven,
    /// Towards zero.
    TowardsZero,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
    /// To nearest, ties away from zero.
    NearestAway,
}

impl Rounding {
    /// From the three bits of `frm` or of an instruction; `None` for reserved codes.
    #[must_use]
    pub fn from_bits(bits: u8) -> Option<Self> {
        [Self::NearestEven, Self::TowardsZero, Self::Down, Self::Up, Self::NearestAway]
            .get(usize::from(bits))
            .copied()
    }

    /// Whether a significand that lost these bits goes up by one.
    fn rounds_up(self, negative: bool, odd: bool, lost: Lost) -> bool {
        match self {
            Self::NearestEven => lost == Lost::MoreThanHalf || lost == Lost::Half && odd,
            Self::TowardsZero => false,
            Self::Down => negative && lost != Lost::Nothing,
            Self::Up => !negative && lost != Lost::Nothing,
            Self::NearestAway => matches!(lost, Lost::Half | Lost::MoreThanHalf),
        }
    }
}

/// What rounding drops, in units of the last place kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    Nothing,
    LessThanHalf,
    Half,
    MoreThanHalf,
}

/// Drops the lowest `shift` bits; `sticky` says that something lies below them.
fn shift_right(significand: u128, shift: u32, sticky: bool) -> (u128, Lost) {
    if shift == 0 {
        return (significand, if sticky { Lost::LessThanHalf } else { Lost::Nothing });
    }
    if shift > 128 {
        return (0, Lost::LessThanHalf);
    }
    let kept = significand.checked_shr(shift).unwrap_or(0);
    let rest = significand & (u128::MAX >> (128 - shift));
    let half = 1u128 << (shift - 1);
    let lost = match rest.cmp(&half) {
        std::cmp::Ordering::Less if rest == 0 && !sticky => Lost::Nothing,
        std::cmp::Ordering::Less => Lost::LessThanHalf,
        std::cmp::Ordering::Equal if !sticky => Lost::Half,
        _ => Lost::MoreThanHalf,
    };
    (kept, lost)
}

/// An exact finite nonzero number: `significand * 2^exponent`, a little more if `sticky`.
#[derive(Debug, Clone, Copy)]
struct Exact {
    negative: bool,
    exponent: i32,
    significand: u128,
    sticky: bool,
}

impl Exact {
    /// The same value with its highest bit at `bit`, which must not lose bits.
    fn with_top_bit(self, bit: u32) -> Self {
        let up = self.significand.leading_zeros() as i32 - (127 - bit as i32);
        let exponent = self.exponent - up;
        Self { exponent, significand: self.significand << up.max(0), ..self }
    }

    /// The sum; `None` where it is exactly zero.
    fn add(self, other: Self) -> Option<Self> {
        let (mut a, mut b) = (self.with_top_bit(125), other.with_top_bit(125));
        if (a.exponent, a.significand) < (b.exponent, b.significand) {
            std::mem::swap(&mut a, &mut b);
        }
        let (shifted, lost) = shift_right(b.significand, (a.exponent - b.exponent) as u32, false);
        let sticky = lost != Lost::Nothing;
        let significand = if a.negative == b.negative {
            a.significand + shifted
        } else {
            a.significand - shifted - u128::from(sticky)
        };
        (significand != 0).then_some(Self { significand, sticky, ..a })
    }
}

/// What a bit pattern stands for.
#[derive(Debug, Clone, Copy)]
enum Class {
    Zero,
    Finite(Exact),
    Infinite,
    QuietNan,
    SignallingNan,
}

/// Flags accrued by an operation; or'ed into `fflags`.
pub type FloatFlags = u8;

/// A binary interchange format: 32 or 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FloatFormat {
    exponent_bits: u32,
    fraction_bits: u32,
}

/// Single precision.
pub const SINGLE: FloatFormat = FloatFormat { exponent_bits: 8, fraction_bits: 23 };
/// Double precision.
pub const DOUBLE: FloatFormat = FloatFormat { exponent_bits: 11, fraction_bits: 52 };

impl FloatFormat {
    const fn sign_bit(self) -> u64 {
        1 << (self.exponent_bits + self.fraction_bits)
    }

    const fn infinity(self) -> u64 {
        ((1 << self.exponent_bits) - 1) << self.fraction_bits
    }

    /// The canonical NaN.
    #[must_use]
    pub const fn nan(self) -> u64 {
        self.infinity() | 1 << (self.fraction_bits - 1)
    }

    /// Exponent of the last place of subnormal numbers.
    const fn least_exponent(self) -> i32 {
        2 - (1 << (self.exponent_bits - 1)) - self.fraction_bits as i32
    }

    const fn negative(self, bits: u64) -> bool {
        bits & self.sign_bit() != 0
    }

    fn signed(self, negative: bool, magnitude: u64) -> u64 {
        magnitude | if negative { self.sign_bit() } else { 0 }
    }

    fn class(self, bits: u64) -> Class {
        let fraction = bits & ((1 << self.fraction_bits) - 1);
        let exponent = (bits & self.infinity()) >> self.fraction_bits;
        let negative = self.negative(bits);
        let finite = |exponent: u64, significand: u64| {
            let exponent = self.least_exponent() + exponent as i32 - 1;
            Class::Finite(Exact {
                negative,
                exponent,
                significand: significand.into(),
                sticky: false,
            })
        };
        match (exponent, fraction) {
            (0, 0) => Class::Zero,
            (0, _) => finite(1, fraction),
            (e, 0) if e == self.infinity() >> self.fraction_bits => Class::Infinite,
            (e, _) if e == self.infinity() >> self.fraction_bits => {
                if fraction >> (self.fraction_bits - 1) == 1 {
                    Class::QuietNan
                } else {
                    Class::SignallingNan
                }
            }
            (e, _) => finite(e, fraction | 1 << self.fraction_bits),
        }
    }

    /// Whether the pattern is a NaN, quiet or signalling.
    #[must_use]
    pub fn is_nan(self, bits: u64) -> bool {
        bits & !self.sign_bit() > self.infinity()
    }

    /// Rounds an exact number into the format.
    fn round(self, value: Exact, mode: Rounding, flags: &mut FloatFlags) -> u64 {
        let value = if value.sticky { value.with_top_bit(126) } else { value };
        let bits = 128 - value.significand.leading_zeros() as i32;
        let free = value.exponent + bits - (self.fraction_bits as i32 + 1);
        let unit = free.max(self.least_exponent());
        let at = |unit: i32| {
            let shift = unit - value.exponent;
            if shift < 0 {
                return (value.significand << -shift, Lost::Nothing);
            }
            let (kept, lost) = shift_right(value.significand, shift as u32, value.sticky);
            let up = mode.rounds_up(value.negative, kept & 1 == 1, lost);
            (kept + u128::from(up), lost)
        };
        let (rounded, lost) = at(unit);
        let top = 1u128 << self.fraction_bits;
        if lost != Lost::Nothing {
            *flags |= INEXACT;
            // Tiny: below the least normal number even with an exponent of any range.
            let carries = free == self.least_exponent() - 1 && at(free).0 == top << 1;
            if free < self.least_exponent() && !carries {
                *flags |= UNDERFLOW;
            }
        }
        // A carry out of the fraction moves into the exponent by itself.
        let biased = (unit - self.least_exponent()) as u64;
        let exceeds = biased >= 1 << self.exponent_bits;
        let magnitude =
            if exceeds { u64::MAX } else { (biased << self.fraction_bits) + rounded as u64 };
        if magnitude < self.infinity() {
            return self.signed(value.negative, magnitude);
        }
        *flags |= OVERFLOW | INEXACT;
        let stays = match mode {
            Rounding::NearestEven | Rounding::NearestAway => false,
            Rounding::TowardsZero => true,
            Rounding::Down => !value.negative,
            Rounding::Up => value.negative,
        };
        self.signed(value.negative, self.infinity() - u64::from(stays))
    }

    fn invalid(self, flags: &mut FloatFlags) -> u64 {
        *flags |= INVALID;
        self.nan()
    }

    /// The NaN that an operation with a NaN among `operands` gives.
    fn propagate(self, operands: &[Class], flags: &mut FloatFlags) -> Option<u64> {
        if operands.iter().any(|c| matches!(c, Class::SignallingNan)) {
            *flags |= INVALID;
        }
        let nan = |c: &Class| matches!(c, Class::SignallingNan | Class::QuietNan);
        operands.iter().any(nan).then(|| self.nan())
    }

    /// `a + b`.
    pub fn add(self, a: u64, b: u64, mode: Rounding, flags: &mut FloatFlags) -> u64 {
        let (ca, cb) = (self.class(a), self.class(b));
        if let Some(nan) = self.propagate(&[ca, cb], flags) {
            return nan;
        }
        match (ca, cb) {
            (Class::Infinite, Class::Infinite) if self.negative(a) != self.negative(b) => {
                self.invalid(flags)
            }
            (Class::Infinite, _) => a,
            (_, Class::Infinite) => b,
            (Class::Zero, Class::Zero) if a == b => a,
            (Class::Zero, Class::Zero) => self.signed(mode == Rounding::Down, 0),
            (Class::Zero, _) => b,
            (_, Class::Zero) => a,
            (Class::Finite(ea), Class::Finite(eb)) => self.round_sum(ea.add(eb), mode, flags),
            _ => self.nan(),
        }
    }

    /// `a - b`.
    pub fn subtract(self, a: u64, b: u64, mode: Rounding, flags: &mut FloatFlags) -> u64 {
        self.add(a, self.negate(b), mode, flags)
    }

    fn round_sum(self, sum: Option<Exact>, mode: Rounding, flags: &mut FloatFlags) -> u64 {
        match sum {
            Some(sum) => self.round(sum, mode, flags),
            None => self.signed(mode == Rounding::Down, 0),
        }
    }

    /// `a` with its sign inverted.
    #[must_use]
    pub const fn negate(self, a: u64) -> u64 {
        a ^ self.sign_bit()
    }

    /// `a * b`.
    pub fn multiply(self, a: u64, b: u64, mode: Rounding, flags: &mut FloatFlags) -> u64 {
        let (ca, cb) = (self.class(a), self.class(b));
        if let Some(nan) = self.propagate(&[ca, cb], flags) {
            return nan;
        }
        let negative = self.negative(a) != self.negative(b);
        match (ca, cb) {
            (Class::Infinite, Class::Zero) | (Class::Zero, Class::Infinite) => self.invalid(flags),
            (Class::Infinite, _) | (_, Class::Infinite) => self.signed(negative, self.infinity()),
            (Class::Finite(ea), Class::Finite(eb)) => {
                self.round(product(ea, eb, negative), mode, flags)
            }
            _ => self.signed(negative, 0),
        }
    }

    /// `a * b + c`, rounded once.
    pub fn multiply_add(self, [a, b, c]: [u64; 3], mode: Rounding, flags: &mut FloatFlags) -> u64 {
        let (ca, cb, cc) = (self.class(a), self.class(b), self.class(c));
        let undefined =
            matches!((ca, cb), (Class::Infinite, Class::Zero) | (Class::Zero, Class::Infinite));
        if undefined {
            // Also with a quiet NaN as addend.
            *flags |= INVALID;
        }
        if let Some(nan) = self.propagate(&[ca, cb, cc], flags) {
            return nan;
        }
        let negative = self.negative(a) != self.negative(b);
        match (ca, cb, cc) {
            _ if undefined => self.nan(),
            (Class::Infinite, _, _) | (_, Class::Infinite, _) => {
                self.add(self.signed(negative, self.infinity()), c, mode, flags)
            }
            (Class::Finite(ea), Class::Finite(eb), Class::Finite(ec)) => {
                self.round_sum(product(ea, eb, negative).add(ec), mode, flags)
            }
            (Class::Finite(ea), Class::Finite(eb), Class::Zero) => {
                self.round(product(ea, eb, negative), mode, flags)
            }
            (Class::Finite(_), Class::Finite(_), _) => c,
            _ => self.add(self.signed(negative, 0), c, mode, flags),
        }
    }

    /// `a / b`.
    pub fn divide(self, a: u64, b: u64, mode: Rounding, flags: &mut FloatFlags) -> u64 {
        let (ca, cb) = (self.class(a), self.class(b));
        if let Some(nan) = self.propagate(&[ca, cb], flags) {
            return nan;
        }
        let negative = self.negative(a) != self.negative(b);
        match (ca, cb) {
            (Class::Infinite, Class::Infinite) | (Class::Zero, Class::Zero) => self.invalid(flags),
            (Class::Infinite, _) => self.signed(negative, self.infinity()),
            (_, Class::Infinite) | (Class::Zero, _) => self.signed(negative, 0),
            (_, Class::Zero) => {
                *flags |= DIVIDE_BY_ZERO;
                self.signed(negative, self.infinity())
            }
            (Class::Finite(ea), Class::Finite(eb)) => {
                let (ea, eb) = (ea.with_top_bit(127), eb.with_top_bit(63));
                let significand = ea.significand / eb.significand;
                let sticky = ea.significand % eb.significand != 0;
                let exponent = ea.exponent - eb.exponent;
                self.round(Exact { negative, exponent, significand, sticky }, mode, flags)
            }
            _ => self.nan(),
        }
    }

    /// The square root of `a`.
    pub fn square_root(self, a: u64, mode: Rounding, flags: &mut FloatFlags) -> u64 {
        let class = self.class(a);
        if let Some(nan) = self.propagate(&[class], flags) {
            return nan;
        }
        match class {
            Class::Zero => a,
            _ if self.negative(a) => self.invalid(flags),
            Class::Finite(exact) => {
                let even = exact.with_top_bit(126);
                let even = if even.exponent & 1 == 0 { even } else { even.with_top_bit(127) };
                let root = even.significand.isqrt();
                let sticky = root * root != even.significand;
                let exact =
                    Exact { significand: root, exponent: even.exponent / 2, sticky, ..even };
                self.round(exact, mode, flags)
            }
            _ => a,
        }
    }

    /// `a < b`, `a == b`, `a > b`; `None` where one is a NaN.
    #[must_use]
    pub fn compare(self, a: u64, b: u64) -> Option<std::cmp::Ordering> {
        if self.is_nan(a) || self.is_nan(b) {
            return None;
        }
        let key = |bits: u64| {
            let magnitude = (bits & !self.sign_bit()) as i64;
            if self.negative(bits) {
                -magnitude
            } else {
                magnitude
            }
        };
        Some(key(a).cmp(&key(b)))
    }

    /// Whether the pattern is a signalling NaN.
    #[must_use]
    pub fn is_signalling(self, bits: u64) -> bool {
        self.is_nan(bits) && bits >> (self.fraction_bits - 1) & 1 == 0
    }

    /// `fmin` (or `fmax`): of -0 and +0 the first is less; a NaN gives way to a number.
    pub fn select(
        self,
        a: u64,
        b: u64,
        extreme: std::cmp::Ordering,
        flags: &mut FloatFlags,
    ) -> u64 {
        if self.is_signalling(a) || self.is_signalling(b) {
            *flags |= INVALID;
        }
        match (self.is_nan(a), self.is_nan(b)) {
            (true, true) => self.nan(),
            (true, false) => b,
            (false, true) => a,
            _ => {
                let order = self.compare(a, b).unwrap_or(std::cmp::Ordering::Equal);
                let order = order.then(self.negative(b).cmp(&self.negative(a)));
                if order == extreme {
                    a
                } else {
                    b
                }
            }
        }
    }

    /// The mask of `fclass`.
    #[must_use]
    pub fn classify(self, a: u64) -> u64 {
        let normal = a & !self.sign_bit() >= 1 << self.fraction_bits;
        let (negative, positive) = match self.class(a) {
            Class::SignallingNan => (8, 8),
            Class::QuietNan => (9, 9),
            Class::Infinite => (0, 7),
            Class::Finite(_) if normal => (1, 6),
            Class::Finite(_) => (2, 5),
            Class::Zero => (3, 4),
        };
        1 << if self.negative(a) { negative } else { positive }
    }

    /// An integer as a number.
    pub fn from_integer(self, value: i128, mode: Rounding, flags: &mut FloatFlags) -> u64 {
        if value == 0 {
            return 0;
        }
        let significand = value.unsigned_abs();
        let exact = Exact { negative: value < 0, exponent: 0, significand, sticky: false };
        self.round(exact, mode, flags)
    }

    /// The number as an integer of `low..=high`; what lies outside saturates and is invalid, and a
    /// NaN counts as plus infinity.
    pub fn to_integer(
        self,
        a: u64,
        [low, high]: [i128; 2],
        mode: Rounding,
        flags: &mut FloatFlags,
    ) -> i128 {
        let negative = self.negative(a);
        let exact = match self.class(a) {
            Class::Zero => return 0,
            Class::Finite(exact) => exact,
            Class::Infinite if negative => {
                *flags |= INVALID;
                return low;
            }
            _ => {
                *flags |= INVALID;
                return high;
            }
        };
        let (magnitude, lost) = if exact.exponent >= 0 {
            // From 2^65 on, any shift is outside all integers asked for.
            (exact.significand << exact.exponent.min(66), Lost::Nothing)
        } else {
            let (kept, lost) = shift_right(exact.significand, -exact.exponent as u32, false);
            let up = mode.rounds_up(negative, kept & 1 == 1, lost);
            (kept + u128::from(up), lost)
        };
        let value = if negative { -(magnitude as i128) } else { magnitude as i128 };
        if value < low || value > high {
            *flags |= INVALID;
            return value.clamp(low, high);
        }
        if lost != Lost::Nothing {
            *flags |= INEXACT;
        }
        value
    }

    /// The number in another format.
    pub fn convert(self, to: Self, a: u64, mode: Rounding, flags: &mut FloatFlags) -> u64 {
        let class = self.class(a);
        if self.propagate(&[class], flags).is_some() {
            return to.nan();
        }
        match class {
            Class::Finite(exact) => to.round(exact, mode, flags),
            Class::Zero => to.signed(self.negative(a), 0),
            _ => to.signed(self.negative(a), to.infinity()),
        }
    }
}

fn product(a: Exact, b: Exact, negative: bool) -> Exact {
    let significand = a.significand * b.significand;
    Exact { negative, exponent: a.exponent + b.exponent, significand, sticky: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pattern that is near the edges of the format as often as not.
    fn pattern(state: &mut u64, format: FloatFormat) -> u64 {
        let mut next = || {
            *state ^= *state << 13;
            *state ^= *state >> 7;
            *state ^= *state << 17;
            *state
        };
        let bits = next();
        let edge = [0, 1, format.infinity() - 1, format.infinity(), format.nan(), 1 << 51, 3 << 61];
        let mask = format.sign_bit() | (format.sign_bit() - 1);
        match next() % 4 {
            0 => edge[(bits % 7) as usize] | (bits & format.sign_bit()),
            1 => (bits & format.sign_bit()) | (format.infinity() / 2).wrapping_add(bits % 64),
            _ => bits,
        }
        .wrapping_add(next() % 3)
            & mask
    }

    // The host rounds to nearest, ties to even; NaNs are compared as NaNs.
    #[test]
    fn results_agree_with_the_host_when_rounding_to_nearest() {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        let mode = Rounding::NearestEven;
        for step in 0..300_000 {
            let [a, b, c] = [(); 3].map(|()| pattern(&mut state, DOUBLE));
            let [x, y, z] = [a, b, c].map(f64::from_bits);
            let mut flags = 0;
            let pairs = [
                (DOUBLE.add(a, b, mode, &mut flags), x + y),
                (DOUBLE.multiply(a, b, mode, &mut flags), x * y),
                (DOUBLE.divide(a, b, mode, &mut flags), x / y),
                (DOUBLE.square_root(a, mode, &mut flags), x.sqrt()),
                (DOUBLE.multiply_add([a, b, c], mode, &mut flags), x.mul_add(y, z)),
            ];
            for (which, (ours, host)) in pairs.into_iter().enumerate() {
                let same = ours == host.to_bits() || host.is_nan() && ours == DOUBLE.nan();
                assert!(
                    same,
                    "step {step} operation {which}: {a:x} {b:x} {c:x}: {ours:x} {host:e}"
                );
            }
            let [a, b, c] = [a, b, c].map(|bits| (bits >> 17) & 0xffff_ffff);
            let [x, y, z] = [a, b, c].map(|bits| f32::from_bits(bits as u32));
            let pairs = [
                (SINGLE.add(a, b, mode, &mut flags), x + y),
                (SINGLE.multiply(a, b, mode, &mut flags), x * y),
                (SINGLE.divide(a, b, mode, &mut flags), x / y),
                (SINGLE.square_root(a, mode, &mut flags), x.sqrt()),
                (SINGLE.multiply_add([a, b, c], mode, &mut flags), x.mul_add(y, z)),
            ];
            for (which, (ours, host)) in pairs.into_iter().enumerate() {
                let same =
                    ours == u64::from(host.to_bits()) || host.is_nan() && ours == SINGLE.nan();
                assert!(
                    same,
                    "step {step} operation {which}: {a:x} {b:x} {c:x}: {ours:x} {host:e}"
                );
            }
        }
    }

    #[test]
    fn flags_follow_the_standard() {
        let (mode, one) = (Rounding::NearestEven, 1f64.to_bits());
        let flags_of = |f: &dyn Fn(&mut FloatFlags) -> u64| {
            let mut flags = 0;
            f(&mut flags);
            flags
        };
        let most = f64::MAX.to_bits();
        assert_eq!(flags_of(&|f| DOUBLE.add(one, one, mode, f)), 0);
        assert_eq!(flags_of(&|f| DOUBLE.add(one, 1, mode, f)), INEXACT);
        assert_eq!(flags_of(&|f| DOUBLE.add(most, most, mode, f)), OVERFLOW | INEXACT);
        assert_eq!(flags_of(&|f| DOUBLE.divide(one, 0, mode, f)), DIVIDE_BY_ZERO);
        assert_eq!(flags_of(&|f| DOUBLE.divide(0, 0, mode, f)), INVALID);
        assert_eq!(flags_of(&|f| DOUBLE.divide(1, 3f64.to_bits(), mode, f)), UNDERFLOW | INEXACT);
        // Exact subnormal results do not underflow.
        assert_eq!(flags_of(&|f| DOUBLE.divide(2, 2f64.to_bits(), mode, f)), 0);
        // Rounds up to the least normal number: not tiny after rounding to 53 bits.
        let below = f64::MIN_POSITIVE.to_bits() - 1;
        let factor = 1f64.to_bits() + 1;
        let mut flags = 0;
        let up = DOUBLE.multiply(below, factor, mode, &mut flags);
        assert_eq!((up, flags), (f64::MIN_POSITIVE.to_bits(), INEXACT));
    }

    #[test]
    fn integers_saturate_and_round() {
        let range = [i128::from(i32::MIN), i128::from(i32::MAX)];
        let to = |x: f64, mode| {
            let mut flags = 0;
            (DOUBLE.to_integer(x.to_bits(), range, mode, &mut flags), flags)
        };
        assert_eq!(to(2.5, Rounding::NearestEven), (2, INEXACT));
        assert_eq!(to(2.5, Rounding::NearestAway), (3, INEXACT));
        assert_eq!(to(-2.5, Rounding::Down), (-3, INEXACT));
        assert_eq!(to(-2.5, Rounding::Up), (-2, INEXACT));
        assert_eq!(to(1e300, Rounding::Up), (range[1], INVALID));
        assert_eq!(to(f64::NAN, Rounding::Up), (range[1], INVALID));
        assert_eq!(to(f64::NEG_INFINITY, Rounding::Up), (range[0], INVALID));
        let mut flags = 0;
        let big = DOUBLE.from_integer(i128::from(u64::MAX), Rounding::TowardsZero, &mut flags);
        assert_eq!((f64::from_bits(big), flags), (18_446_744_073_709_549_568.0, INEXACT));
    }
}
