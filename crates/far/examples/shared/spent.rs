//! CPU time of the pager and of the program.

/// Seconds that threads of this process computed, and that they waited for a CPU
/// (`/proc/PID/task/TID/schedstat`): the pager's, then all others. On a busy host the second says
/// how much of the time was the neighbours'.
#[derive(Clone, Copy, Default)]
pub struct Spent {
    pager: [f64; 2],
    program: [f64; 2],
}

impl Spent {
    pub fn so_far() -> Self {
        let mut spent = Self::default();
        for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let read =
                |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let to = if read("comm").starts_with("terrace-far") {
                &mut spent.pager
            } else {
                &mut spent.program
            };
            for (sum, word) in to.iter_mut().zip(read("schedstat").split_whitespace()) {
                *sum += word.parse::<f64>().unwrap_or(0.0) / 1e9;
            }
        }
        spent
    }

    pub fn since(self, before: Self) -> serde_json::Value {
        let d = |a: [f64; 2], b: [f64; 2]| [a[0] - b[0], a[1] - b[1]];
        let (pager, program) = (d(self.pager, before.pager), d(self.program, before.program));
        serde_json::json!({
            "pager_cpu_s": pager[0], "pager_runqueue_s": pager[1],
            "program_cpu_s": program[0], "program_runqueue_s": program[1],
        })
    }
}
