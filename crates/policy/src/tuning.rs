//! Constants that steer a component, as one struct with a unit and a reason for each: usual values,
//! names, and a way to scale one by its name, so that a study can halve and double each.

use terrace_types::Nanos;

/// A value that can be taken a number of times; whole numbers stay above zero.
pub trait Scaled: Copy {
    /// `factor` times the value.
    #[must_use]
    fn scaled(self, factor: f64) -> Self;
}

impl Scaled for f64 {
    fn scaled(self, factor: f64) -> Self {
        self * factor
    }
}

impl Scaled for f32 {
    fn scaled(self, factor: f64) -> Self {
        self * factor as Self
    }
}

macro_rules! whole {
    ($($kind:ty),*) => {
        $(impl Scaled for $kind {
            fn scaled(self, factor: f64) -> Self {
                ((self as f64 * factor) as Self).max(1)
            }
        })*
    };
}

whole!(u64, usize, i64, i32, u32, u8);

impl Scaled for Nanos {
    fn scaled(self, factor: f64) -> Self {
        Self(self.0.scaled(factor))
    }
}

/// Makes such a struct: `tuning! { /// What it steers. pub struct Name: /// Meaning, unit, reason.
/// field: kind = value; ... }`.
#[macro_export]
macro_rules! tuning {
    ($(#[$meta:meta])* pub struct $Name:ident:
        $($(#[doc = $doc:literal])* $name:ident: $kind:ty = $value:expr;)*) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct $Name {
            $($(#[doc = $doc])* pub $name: $kind,)*
        }

        impl Default for $Name {
            fn default() -> Self {
                Self::USUAL
            }
        }

        impl $Name {
            /// The usual values.
            pub const USUAL: Self = Self { $($name: $value,)* };

            /// Names of all values.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// Multiplies the value of this name; `false`: there is none.
            pub fn scale(&mut self, name: &str, factor: f64) -> bool {
                match name {
                    $(stringify!($name) => {
                        self.$name = $crate::tuning::Scaled::scaled(self.$name, factor);
                    })*
                    _ => return false,
                }
                true
            }
        }
    };
}
