//! The table of what was hit: each operation and step against each thing that can befall it.
//!
//! Always true: a cell is a count, or it says why it can't be hit; a count of zero is a failure.

use super::coverage::{Coverage, Stage};
use super::fault::Befall;

/// Every operation and step.
pub const STAGES: [Stage; 20] = [
    ("get", "bucket"),
    ("get", "directory"),
    ("get", "sealed"),
    ("get", "blocks"),
    ("put", "start"),
    ("put", "bucket"),
    ("put", "directory"),
    ("put", "blocks"),
    ("put", "insert"),
    ("put", "rival"),
    ("put", "replace"),
    ("put", "mark"),
    ("delete", "bucket"),
    ("delete", "directory"),
    ("delete", "memory"),
    ("delete", "blocks"),
    ("delete", "replace"),
    ("delete", "mark"),
    ("resolve", "slot"),
    ("harvest", "free maps"),
];

/// Why that can't befall an operation in that step; `None` if it can.
pub fn impossible((operation, step): Stage, befall: Befall) -> Option<&'static str> {
    let asks_for_memory = matches!((operation, step), ("put", "start") | ("delete", "memory"));
    if asks_for_memory != (befall == Befall::NoMemory) {
        return Some(if asks_for_memory { "no verb is out" } else { "wants no memory" });
    }
    let reads_words = matches!(step, "bucket" | "blocks" | "rival");
    let reads = reads_words || matches!(step, "directory" | "sealed" | "slot" | "free maps");
    match befall {
        // A restart ends the region, and a rebuild of it too; the simulator has either.
        Befall::Restart if step == "sealed" => Some("no restart within a rebuild"),
        Befall::ReadAgain if !reads => Some("no READ"),
        Befall::Tear if !reads_words => Some("one word"),
        Befall::Timeout | Befall::Standstill | Befall::ClockJump if step == "mark" => {
            Some("the call has returned")
        }
        _ => None,
    }
}

/// Cells that could be hit and were not.
pub fn empty_cells(coverage: &Coverage) -> Vec<(Stage, Befall)> {
    let cells =
        STAGES.into_iter().flat_map(|stage| Befall::ALL.into_iter().map(move |befall| (stage, befall)));
    cells
        .filter(|(stage, befall)| {
            impossible(*stage, *befall).is_none() && coverage.count(*stage, *befall) == 0
        })
        .collect()
}

/// The table in Markdown.
pub fn table(coverage: &Coverage) -> String {
    let names: Vec<&str> = Befall::ALL.iter().map(|befall| befall.name()).collect();
    let mut text =
        format!("| operation, step | {} |\n| --- |{}\n", names.join(" | "), " ---: |".repeat(names.len()));
    for stage in STAGES {
        text += &format!("| {}, {} |", stage.0, stage.1);
        for befall in Befall::ALL {
            match impossible(stage, befall) {
                Some(_) => text += " – |",
                None => text += &format!(" {} |", coverage.count(stage, befall)),
            }
        }
        text += "\n";
    }
    text
}
