//! Lines end at 100 columns, comments included.

use super::{lines, Finding};
use crate::tree::Tree;

/// Columns of a line, counted in characters.
const WIDTH: usize = 100;

/// Sources that the rule reads.
const SOURCES: [&str; 5] = [".rs", ".c", ".h", ".py", ".sh"];

/// Files with longer lines: how many they may have at most, and why these are not broken.
const EXCEPTIONS: &[(&str, usize, &str)] = &[
    ("bench/far/programs.sh", 13, "programs and formats for other tools, as strings"),
    ("bench/far/run.sh", 1, "programs and formats for other tools, as strings"),
    ("bench/far/study.sh", 1, "programs and formats for other tools, as strings"),
    ("bench/hexe.sh", 7, "programs and formats for other tools, as strings"),
    ("bench/hyplacer.sh", 1, "programs and formats for other tools, as strings"),
    ("bench/probe.sh", 6, "programs and formats for other tools, as strings"),
    ("bench/programs/kernels/hard.c", 1, "lines of macros"),
    ("bench/programs/suite.py", 2, "formats and markup, as strings"),
    ("bench/recording.sh", 1, "programs and formats for other tools, as strings"),
    ("bench/stage_figures.py", 7, "formats and markup, as strings"),
    ("bench/tracking.sh", 2, "programs and formats for other tools, as strings"),
    ("bench/truth.sh", 1, "programs and formats for other tools, as strings"),
    ("bench/truth/table.py", 3, "formats and markup, as strings"),
    ("capture/hooks/atomics.h", 2, "lines of macros"),
    ("capture/hooks/runtime.c", 2, "lines of macros"),
    ("capture/translator/build.rs", 1, "a diagram, or a string without spaces"),
    ("crates/alloc/src/arena/plan.rs", 2, "a diagram, or a string without spaces"),
    ("crates/alloc/src/arena/slab.rs", 1, "a diagram, or a string without spaces"),
    ("crates/alloc/src/shared/mod.rs", 2, "a diagram, or a string without spaces"),
    ("crates/alloc/tests/double/libcuda.c", 1, "lines of macros"),
    ("crates/capi/examples/errors.c", 1, "lines of macros"),
    ("crates/cli/src/gpu.rs", 2, "a diagram, or a string without spaces"),
    ("crates/engine/src/journal/mod.rs", 1, "a diagram, or a string without spaces"),
    ("crates/far-preload/src/lib.rs", 1, "a diagram, or a string without spaces"),
    ("crates/far-preload/tests/programs.rs", 4, "programs in other languages, as strings"),
    ("crates/far/examples/far-bench/main.rs", 1, "a diagram, or a string without spaces"),
    ("crates/far/examples/far-study/main.rs", 2, "a diagram, or a string without spaces"),
    ("crates/far/examples/far-study/results.rs", 1, "a diagram, or a string without spaces"),
    ("crates/far/examples/far-study/statements.rs", 1, "a diagram, or a string without spaces"),
    ("crates/gpu/examples/collect.rs", 1, "a diagram, or a string without spaces"),
    ("crates/lab/examples/sweep.rs", 1, "a diagram, or a string without spaces"),
    ("crates/lab/src/policies.rs", 1, "a diagram, or a string without spaces"),
    ("crates/lab/src/qemu.rs", 1, "a diagram, or a string without spaces"),
    ("crates/policy/src/far/pager/mod.rs", 1, "a diagram, or a string without spaces"),
    (
        "crates/policy/tests/properties.rs",
        3,
        "code within macros, or text, that reads worse in parts",
    ),
    ("crates/preload/tests/programs.rs", 12, "programs in other languages, as strings"),
    ("crates/preload/tests/runtimes.rs", 12, "programs in other languages, as strings"),
    ("crates/preload/tests/semantics.c", 1, "programs in other languages, as strings"),
    ("crates/report/tests/common/kinds.rs", 1, "JSON and scripts, as strings"),
    ("crates/report/tests/pictures.rs", 5, "JSON and scripts, as strings"),
    ("crates/report/tests/probe.rs", 12, "JSON and scripts, as strings"),
    ("crates/sim/src/far.rs", 5, "a diagram, or a string without spaces"),
    ("crates/sys/src/cuda/live.rs", 1, "a diagram, or a string without spaces"),
    ("crates/sys/src/farmem.rs", 1, "a diagram, or a string without spaces"),
    ("crates/terrace/src/stage.rs", 1, "a diagram, or a string without spaces"),
    ("crates/trace/src/frame.rs", 2, "a diagram, or a string without spaces"),
    ("crates/trace/src/lib.rs", 1, "a diagram, or a string without spaces"),
    ("crates/workload/src/team.rs", 1, "a diagram, or a string without spaces"),
    ("lab/fetch.sh", 1, "programs and formats for other tools, as strings"),
    ("lab/plugin/plugin.c", 1, "lines of macros"),
    ("lab/plugin/src/decode.rs", 1, "a diagram, or a string without spaces"),
    ("lab/plugin/src/record.rs", 3, "a diagram, or a string without spaces"),
    ("python/python/terrace/alloc.py", 2, "formats and markup, as strings"),
    ("python/python/terrace/far.py", 1, "formats and markup, as strings"),
    ("python/python/terrace/sim.py", 1, "formats and markup, as strings"),
    ("python/tests/test_alloc.py", 4, "formats and markup, as strings"),
    ("scripts/install.sh", 1, "programs and formats for other tools, as strings"),
    ("scripts/installed.sh", 1, "programs and formats for other tools, as strings"),
    ("scripts/package.sh", 1, "programs and formats for other tools, as strings"),
    ("scripts/ring3.sh", 3, "programs and formats for other tools, as strings"),
    ("scripts/sanitize.sh", 5, "programs and formats for other tools, as strings"),
    ("scripts/setup.sh", 1, "programs and formats for other tools, as strings"),
    ("scripts/test.sh", 4, "programs and formats for other tools, as strings"),
];

/// Checks all sources. Rows of tables in comments (`//! | ... |`) cannot be broken and may be
/// longer.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.files() {
        if !SOURCES.iter().any(|ending| path.ends_with(ending)) {
            continue;
        }
        let excused = EXCEPTIONS.iter().find(|(name, ..)| *name == path).map_or(0, |e| e.1);
        let long: Vec<usize> = lines(text)
            .filter(|(_, line)| line.chars().count() > WIDTH && !is_table_row(line))
            .map(|(number, _)| number)
            .collect();
        if long.len() > excused {
            found.extend(long.iter().map(|number| {
                let what = format!(
                    "longer than {WIDTH} columns: break it, or raise the file's number in {} \
                     with a reason",
                    file!()
                );
                Finding::error(format!("{path}:{number}"), what)
            }));
        } else if long.len() < excused {
            let what = format!("{} long lines, {excused} allowed: lower the number", long.len());
            found.push(Finding::error(path, what));
        }
    }
    found
}

/// Whether a comment's line is a row of a table.
fn is_table_row(line: &str) -> bool {
    let comment = line.trim_start().trim_start_matches('/').trim_start_matches('!');
    line.trim_start().starts_with("//") && comment.trim_start().starts_with('|')
}

#[cfg(test)]
mod tests {
    use super::super::describe;
    use super::*;

    #[test]
    fn long_lines_are_found_in_code_and_comments_and_tables_are_not() {
        let long = format!("// {}\n", "ä".repeat(98));
        let table = format!("//! | {} |\n", "a".repeat(120));
        let fits = format!("# {}\n", "ä".repeat(98));
        let tree = Tree::with(&[
            ("crates/a/src/long.rs", &long),
            ("crates/a/src/table.rs", &table),
            ("scripts/fits.sh", &fits),
            ("docs/long.md", &long),
        ]);
        let found = check(&tree);
        assert_eq!(found.len(), 1, "{}", describe(&found));
        assert!(found[0].fails && found[0].at == "crates/a/src/long.rs:1");
    }
}
