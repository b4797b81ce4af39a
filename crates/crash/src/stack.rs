//! A thread's calls, from its loads and stores: a call stores the address of the instruction
//! behind it, a return loads it.

/// Frames that are kept at most; of deeper recursion the innermost are lost.
const MOST_FRAMES: usize = 4096;
/// A call is two to fifteen bytes long (Intel's manual, volume 2, section 2.3.11).
const CALL_BYTES: std::ops::RangeInclusive<u64> = 2..=15;

/// A thread's frames, outermost first.
#[derive(Debug, Clone, Default)]
pub struct CallStack {
    /// Where the return address lies, and the call.
    frames: Vec<(u64, u64)>,
}

impl CallStack {
    /// A store of eight bytes by the instruction at `pc`.
    pub fn store(&mut self, pc: u64, address: u64, value: u64) {
        if !CALL_BYTES.contains(&value.wrapping_sub(pc)) {
            return;
        }
        // Stacks grow downwards: frames below the new one have been left without a return.
        while self.frames.last().is_some_and(|(at, _)| *at <= address) {
            self.frames.pop();
        }
        if self.frames.len() < MOST_FRAMES {
            self.frames.push((address, pc));
        }
    }

    /// A load of eight bytes.
    #[inline]
    pub fn load(&mut self, address: u64) {
        if self.frames.last().is_some_and(|(at, _)| *at == address) {
            self.frames.pop();
        }
    }

    /// The addresses of the calls, innermost first.
    #[must_use]
    pub fn calls(&self) -> Vec<u64> {
        self.frames.iter().rev().map(|(_, pc)| *pc).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_known_by_what_they_store() {
        let mut stack = CallStack::default();
        stack.store(0x1000, 0x7ff8, 0x1005);
        stack.store(0x2000, 0x7fe0, 0x2005);
        stack.store(0x2010, 0x7fd8, 0xdead); // a value that is no return address
        assert_eq!(stack.calls(), [0x2000, 0x1000]);
        stack.load(0x7fe0);
        assert_eq!(stack.calls(), [0x1000]);
        // A jump out of two frames, as longjmp does, and another call from there.
        stack.store(0x3000, 0x7fe0, 0x3002);
        stack.store(0x3100, 0x7fc0, 0x3102);
        stack.store(0x1100, 0x7ff8, 0x1105);
        assert_eq!(stack.calls(), [0x1100]);
    }
}
