//! Results as one word, for functions with C's calling convention.

use crate::arena::error::{ArenaAllocError, FreeError};
use std::ptr::NonNull;

/// What slow paths return: an address, or the number of an error; one register instead of two words
/// in memory.
pub(super) type Raw = usize;

pub(super) fn raw_of(result: Result<NonNull<u8>, ArenaAllocError>) -> Raw {
    match result {
        Ok(block) => block.as_ptr() as usize,
        Err(error) => error as usize + 1,
    }
}

#[inline(always)]
pub(super) fn result_of(raw: Raw) -> Result<NonNull<u8>, ArenaAllocError> {
    if raw > ERRORS.len() {
        // SAFETY: not zero.
        return Ok(unsafe { NonNull::new_unchecked(raw as *mut u8) });
    }
    Err(ERRORS[(raw.wrapping_sub(1)) % ERRORS.len()])
}

pub(super) fn raw_of_free(result: Result<(), FreeError>) -> Raw {
    match result {
        Ok(()) => 0,
        Err(error) => error as usize + 1,
    }
}

#[inline(always)]
pub(super) fn freed_of(raw: Raw) -> Result<(), FreeError> {
    if raw == 0 {
        return Ok(());
    }
    Err(FREE_ERRORS[(raw - 1) % FREE_ERRORS.len()])
}

/// In the order of their numbers.
pub(super) const FREE_ERRORS: [FreeError; 3] =
    [FreeError::Foreign, FreeError::NotAllocated, FreeError::Interior];

/// In the order of their numbers.
pub(super) const ERRORS: [ArenaAllocError; 6] = [
    ArenaAllocError::TooLarge,
    ArenaAllocError::Alignment,
    ArenaAllocError::Limit,
    ArenaAllocError::NoAddresses,
    ArenaAllocError::Destroyed,
    ArenaAllocError::Reentered,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_names_through_their_numbers() {
        for error in ERRORS {
            assert_eq!(result_of(raw_of(Err(error))), Err(error));
        }
        for error in FREE_ERRORS {
            assert_eq!(freed_of(raw_of_free(Err(error))), Err(error));
        }
        assert_eq!(freed_of(raw_of_free(Ok(()))), Ok(()));
    }
}
