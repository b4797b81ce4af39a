//! Memory usage as text, for `show` and `top --once`.

use super::{
    printable, BytesByNode, MemoryUsage, MoveRates, NodeUsage, ProcessUsage, MAX_MAPPINGS,
};
use terrace_types::text::fold;
use terrace_types::Bytes;

impl MemoryUsage {
    /// For a terminal of so many columns; `lines` at most, if given.
    #[must_use]
    pub fn text(&self, columns: usize, lines: Option<usize>) -> String {
        let mut out: Vec<String> = Vec::new();
        for node in &self.nodes {
            let used = node.total_bytes.saturating_sub(node.free_bytes);
            let mut line = format!(
                "node {:<3} {:>10} used of {:>10}, {:>10} free",
                node.node,
                Bytes(used).to_string(),
                Bytes(node.total_bytes).to_string(),
                Bytes(node.free_bytes).to_string()
            );
            line += &node.bandwidth().map_or(String::new(), |text| format!(", {text}"));
            out.push(line);
        }
        out.extend(self.moves.map(|moves| moves.to_string()));
        out.push(String::new());
        let mut head = format!("{:>8} {:<16} {:>7} {:>10}", "pid", "name", "threads", "memory");
        self.nodes
            .iter()
            .for_each(|node| head += &format!(" {:>10}", format!("node {}", node.node)));
        head += &format!(" {:>9} {:>6} {:>10} {:>10}", "samples", "local", "hot", "cold");
        out.push(head);
        for process in &self.processes {
            out.push(self.process_line(process));
            if self.processes.len() == 1 {
                out.extend(self.details(process));
            }
        }
        if self.lost_samples > 0 {
            out.push(format!("{} samples were lost", self.lost_samples));
        }
        for note in &self.notes {
            out.extend(fold(&format!("note: {note}"), columns).lines().map(str::to_owned));
        }
        let kept = lines.unwrap_or(out.len());
        let fit = |line: &String| line.chars().take(columns).collect::<String>() + "\n";
        out.iter().take(kept).map(fit).collect()
    }

    fn process_line(&self, process: &ProcessUsage) -> String {
        let name: String = printable(&process.name).chars().take(16).collect();
        let mut line = format!(
            "{:>8} {name:<16} {:>7} {:>10}",
            process.pid,
            process.threads,
            Bytes(process.resident_bytes).to_string()
        );
        line += &self.by_node(&process.by_node_bytes);
        match &process.accesses {
            Some(accesses) => {
                let local = accesses.local_share.map_or("-".to_owned(), percent);
                let [hot, cold] =
                    [accesses.hot_bytes, accesses.cold_bytes].map(|b| Bytes(b).to_string());
                line += &format!(" {:>9} {local:>6} {hot:>10} {cold:>10}", accesses.samples);
            }
            None => line += &format!(" {:>9} {:>6} {:>10} {:>10}", "-", "-", "-", "-"),
        }
        line
    }

    fn by_node(&self, bytes: &BytesByNode) -> String {
        let of = |node: &NodeUsage| bytes.get(&node.node).copied().unwrap_or(0);
        self.nodes.iter().map(|node| format!(" {:>10}", Bytes(of(node)).to_string())).collect()
    }

    /// Mappings and threads of the only process.
    fn details(&self, process: &ProcessUsage) -> Vec<String> {
        let mut lines = vec![
            String::new(),
            "mappings with most memory: address, bytes by node, samples, name".to_owned(),
        ];
        for mapping in &process.mappings {
            let name = match mapping.name.as_str() {
                "" => "anonymous".to_owned(),
                name => printable(name),
            };
            let nodes = self.by_node(&mapping.by_node_bytes);
            let samples = mapping.samples.map_or("-".to_owned(), |n| n.to_string());
            lines.push(format!("{:>16x}{nodes} {samples:>9}  {name}", mapping.start));
        }
        if let Some(accesses) = &process.accesses {
            let all = accesses.samples.max(1) as f64;
            let share = |n: &u64| percent(*n as f64 / all);
            lines.push("samples by thread:".to_owned());
            let by_thread = accesses.by_thread.iter().take(MAX_MAPPINGS);
            lines.extend(by_thread.map(|(tid, n)| format!("{tid:>16} {n:>10} {:>5}", share(n))));
            for (what, by_node) in
                [("CPU", &accesses.by_cpu_node), ("memory", &accesses.by_memory_node)]
            {
                lines.push(format!("samples by node of the {what}:"));
                let rows = by_node.iter();
                lines.extend(rows.map(|(node, n)| format!("{node:>16} {n:>10} {:>5}", share(n))));
            }
        }
        lines
    }
}

fn percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}

impl NodeUsage {
    /// What is read and written a second, if that is counted.
    #[must_use]
    pub fn bandwidth(&self) -> Option<String> {
        let rate = |bytes: f64| format!("{}/s", Bytes(bytes as u64));
        let (read, written) = self.read_bytes_per_s.zip(self.written_bytes_per_s)?;
        Some(format!("{} read, {} written", rate(read), rate(written)))
    }
}

impl std::fmt::Display for MoveRates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "pages moved a second: {:.0} (promoted {:.0}, demoted {:.0}, NUMA balancing {:.0}), \
             not moved {:.0}",
            self.migrated_per_s,
            self.promoted_per_s,
            self.demoted_per_s,
            self.balanced_per_s,
            self.failed_per_s
        )
    }
}
