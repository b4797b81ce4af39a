//! The answer as a table.

use super::{MigratoryAnswer, MigratoryRun};
use std::fmt::Write;
use terrace_report::ReportError;

impl MigratoryAnswer {
    /// The answer as one HTML file.
    ///
    /// # Errors
    /// An answer that cannot be read back, which is a fault of ours.
    pub fn html(&self) -> Result<String, ReportError> {
        let bad = |e: serde_json::Error| ReportError::MigratoryThreads(e.to_string());
        let json = serde_json::to_vec(self).map_err(bad)?;
        Ok(terrace_report::read(&json)?.to_html())
    }

    /// For people: a line for each run, at most 80 columns wide.
    #[must_use]
    pub fn text(&self) -> String {
        let kind = if self.directed { "directed" } else { "undirected" };
        let mut text = format!(
            "{} on {}: {} vertices, {} {kind} edges\n{}, {} nodelets, layout {}\n\n",
            self.program,
            self.graph,
            self.vertices,
            if self.directed { self.edges } else { self.edges / 2 },
            self.machine,
            self.nodelets,
            self.layout
        );
        let head = ["passes", "time", "speedup", "migrations", "saved", "remote", "spawns"];
        let mut rows = vec![head.map(str::to_owned)];
        let first = self.runs.first();
        for run in &self.runs {
            let last = run.passes.last().map_or("(none)".to_owned(), |pass| format!("+ {pass}"));
            rows.push([
                last,
                milliseconds(run.seconds),
                first.map_or(String::new(), |f| format!("{:.2}", f.seconds / run.seconds)),
                run.migrations.to_string(),
                first.map_or(String::new(), |f| format!("{:.1}%", saved(f, run))),
                run.remote_updates.to_string(),
                run.spawns.to_string(),
            ]);
        }
        write_table(&rows, &mut text);
        if let Some(run) = self.runs.last() {
            let values: Vec<String> =
                run.returned.iter().map(|item| format!("{} = {}", item.name, item.text)).collect();
            // Writing to a string cannot fail.
            let _ = writeln!(text, "\nreturned: {}", values.join(", "));
        }
        for note in &self.notes {
            let _ = writeln!(text, "{note}");
        }
        text
    }
}

/// Migrations that a run saves of those of another, percent.
#[must_use]
pub fn saved(before: &MigratoryRun, after: &MigratoryRun) -> f64 {
    if before.migrations == 0 {
        return 0.0;
    }
    (1.0 - after.migrations as f64 / before.migrations as f64) * 100.0
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.3} ms", seconds * 1e3)
}

/// The first column to the left, the others to the right.
fn write_table(rows: &[[String; 7]], text: &mut String) {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    for row in rows {
        let mut line = format!("{:<width$}", row[0], width = widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(line, "  {cell:>width$}");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}
