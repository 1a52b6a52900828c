//! Runs the simulator: `simulate test`, `simulate soak HOURS`, `simulate again SEED WALK`, `simulate hunt MISTAKE`.
//!
//! Always true: `test` does the same work with the same result on every machine; `soak` begins where no run began before,
//! and says where.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sidestep_common::planted::{Fault, LATER};
use sidestep_tests::simulation::campaign::{Sums, made_small, run};
use sidestep_tests::simulation::catalogue::{drawn_task, large, small};
use sidestep_tests::simulation::hunt::{BY_STORIES, Hunted, grounds, hunt, hunt_all};
use sidestep_tests::simulation::table::{empty_cells, table};
use sidestep_tests::simulation::{Befall, Region, World, explore};

const USAGE: &str =
    "usage: simulate test [--docs FILE] | soak HOURS [--ledger FILE] | again SEED WALK | hunt MISTAKE";

/// The drawn worlds of `test`: as many as give millions of schedules.
const TEST_SEED: u64 = 0x51de_57e9;
const TEST_WORLDS: u64 = 2000;
const TEST_WALKS: u64 = 2000;
/// The drawn worlds between two lines of a soak's ledger.
const SOAK_WORLDS: u64 = 2000;
const SOAK_WALKS: u64 = 1000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // Planted mistakes may panic, and are caught then; a panic of a real run is a failure that the run tells of.
    match words[..] {
        ["test"] => test(None),
        ["test", "--docs", file] => test(Some(Path::new(file))),
        ["soak", hours] => soak(hours, Path::new("target/simulation/ledger.txt")),
        ["soak", hours, "--ledger", file] => soak(hours, Path::new(file)),
        ["again", seed, walk] => again(seed, walk),
        ["hunt", name] => hunt_one(name),
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

/// Prints a line now and then.
struct Teller {
    start: Instant,
    last: Mutex<Instant>,
}

impl Teller {
    fn new() -> Self {
        Self { start: Instant::now(), last: Mutex::new(Instant::now()) }
    }

    fn tell(&self, total: usize, sums: &Sums) {
        let Ok(mut last) = self.last.lock() else { return };
        if last.elapsed() >= Duration::from_secs(20) {
            *last = Instant::now();
            let schedules = sums.explored.schedules;
            println!(
                "  {} of {total} worlds, {schedules} schedules, {:?}",
                sums.worlds,
                self.start.elapsed()
            );
        }
    }
}

fn test(docs: Option<&Path>) -> ExitCode {
    println!("# worlds");
    let mut tasks = small();
    tasks.extend(large(TEST_SEED, TEST_WORLDS, TEST_WALKS));
    let (teller, stop) = (Teller::new(), AtomicBool::new(false));
    let sums = run(&tasks, &stop, &|_, sums| teller.tell(tasks.len(), sums));
    println!("{}", families(&sums));
    for found in &sums.found {
        println!("\nVIOLATION {found}");
    }
    println!("# planted mistakes");
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let hunted = hunt_all(&|hunted| println!("{}", line(hunted)));
    std::panic::set_hook(quiet);
    for fault in BY_STORIES {
        println!("{}: caught by a story of its own, not by walks", fault.name());
    }
    println!("\n# what was hit\n{}", table(&sums.coverage));
    let empty = empty_cells(&sums.coverage);
    for (stage, befall) in &empty {
        println!("EMPTY: {} never befell {}, {}", befall.name(), stage.0, stage.1);
    }
    let caught = hunted.iter().filter(|hunted| hunted.caught.is_some()).count();
    let violations = sums.found.len();
    let unfinished = tasks.len() as u64 - sums.worlds;
    if let Some(file) = docs
        && let Err(error) = write_docs(file, &sums, &hunted)
    {
        eprintln!("{}: {error}", file.display());
        return ExitCode::FAILURE;
    }
    let counts = sums.counts;
    println!(
        "steps {} verbs {} kills {} mishaps {} schedules with a mishap {}",
        counts.steps, counts.verbs, counts.kills, counts.befalls, sums.explored.befallen
    );
    // One for each family, each planted mistake, and the table.
    let failed_families = usize::from(violations > 0 || unfinished > 0);
    let failed = failed_families + (hunted.len() - caught) + usize::from(!empty.is_empty());
    let all = sums.families.len() + hunted.len() + 1;
    println!("worlds: {} passed, {failed} failed, 0 skipped", all - failed);
    println!(
        "sim: worlds {} schedules {} crash_points {} planted {caught}/{} violations {violations}",
        sums.worlds,
        sums.explored.schedules,
        sums.explored.crash_points,
        hunted.len()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn families(sums: &Sums) -> String {
    let mut text = String::from("| worlds | how many | schedules |\n| --- | ---: | ---: |\n");
    for (family, (worlds, schedules)) in &sums.families {
        let _ = writeln!(text, "| {family} | {worlds} | {schedules} |");
    }
    text
}

fn line(hunted: &Hunted) -> String {
    let name = hunted.fault.name();
    match &hunted.caught {
        Some(caught) => {
            let promise = caught.promise.map_or("a panic".to_owned(), |promise| format!("{promise:?}"));
            format!("{name}: schedule {}, {promise}: {}", hunted.schedules, caught.story)
        }
        None => format!("{name}: NOT CAUGHT in {} schedules; {}", hunted.schedules, hunted.fault.world()),
    }
}

/// Puts what was measured between its marks in a page.
fn write_docs(file: &Path, sums: &Sums, hunted: &[Hunted]) -> std::io::Result<()> {
    let mut page = std::fs::read_to_string(file)?;
    let mut planted =
        String::from("| mistake | rule | caught by | schedules |\n| --- | --- | --- | ---: |\n");
    for hunted in hunted {
        let fault = hunted.fault;
        let is_masked = hunted.caught.as_ref().is_none_or(|caught| caught.is_masked);
        let masks = if is_masked { fault.masked_by() } else { &[] };
        let with: Vec<&str> = masks.iter().map(|mask| mask.name()).collect();
        let with = if with.is_empty() { String::new() } else { format!(" (with {})", with.join(", ")) };
        let promise = match &hunted.caught {
            Some(caught) => caught.promise.map_or("a panic".to_owned(), |promise| format!("{promise:?}")),
            None => "nothing".to_owned(),
        };
        let mistake = fault.mistake().trim_end_matches('.');
        let _ = writeln!(
            planted,
            "| `{}`{with}: {mistake} | {} | {promise} | {} |",
            fault.name(),
            fault.rule(),
            hunted.schedules
        );
    }
    let mut later = String::from("| rule | waits for |\n| --- | --- |\n");
    for rule in LATER {
        let _ = writeln!(later, "| {} | {} |", rule.rule, rule.until);
    }
    for (name, text) in
        [("worlds", families(sums)), ("hit", table(&sums.coverage)), ("planted", planted), ("later", later)]
    {
        let (begin, end) = (format!("<!-- {name}: made by simulate -->\n"), format!("<!-- {name} ends -->"));
        let (Some(from), Some(to)) = (page.find(&begin), page.find(&end)) else {
            return Err(std::io::Error::other(format!("the page has no marks for `{name}`")));
        };
        page.replace_range(from + begin.len()..to, &format!("\n{text}\n"));
    }
    std::fs::write(file, page)
}

/// Walks on from fresh seeds until the time is up, and keeps a ledger of totals.
fn soak(hours: &str, ledger: &Path) -> ExitCode {
    let Some(hours) = hours.parse::<f64>().ok().filter(|hours| *hours > 0.0 && hours.is_finite()) else {
        return usage();
    };
    let end = Instant::now() + Duration::from_secs_f64(hours * 3600.0);
    let mut seed = std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64);
    let mut total = Sums::default();
    let start = Instant::now();
    while Instant::now() < end && total.found.is_empty() {
        let tasks = large(seed, SOAK_WORLDS, SOAK_WALKS);
        let stop = AtomicBool::new(false);
        let sums = run(&tasks, &stop, &|_, _| {
            if Instant::now() >= end {
                stop.store(true, Ordering::Relaxed);
            }
        });
        total.add(sums);
        if let Err(error) = write_ledger(ledger, seed, &total, start.elapsed()) {
            eprintln!("{}: {error}", ledger.display());
            return ExitCode::FAILURE;
        }
        seed = seed.wrapping_add(SOAK_WORLDS.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
    for found in &total.found {
        println!("\nVIOLATION {found}");
    }
    println!(
        "soak: worlds {} schedules {} crash_points {} violations {}",
        total.worlds,
        total.explored.schedules,
        total.explored.crash_points,
        total.found.len()
    );
    if total.found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn write_ledger(ledger: &Path, seed: u64, total: &Sums, elapsed: Duration) -> std::io::Result<()> {
    if let Some(folder) = ledger.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut text = format!(
        "up to seed {seed:#x}, after {} s: worlds {}, schedules {} ({} with a mishap), steps {}, verbs {}, kills {}, violations {}",
        elapsed.as_secs(),
        total.worlds,
        total.explored.schedules,
        total.explored.befallen,
        total.counts.steps,
        total.counts.verbs,
        total.counts.kills,
        total.found.len()
    );
    for befall in Befall::ALL {
        let _ = write!(text, "; {} {}", befall.name(), total.coverage.total(befall));
    }
    println!("{text}");
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(PathBuf::from(ledger))?;
    writeln!(file, "{text}")
}

/// Looks for one planted mistake.
fn hunt_one(name: &str) -> ExitCode {
    let Some(fault) = Fault::ALL.iter().find(|fault| fault.name() == name) else { return usage() };
    std::panic::set_hook(Box::new(|_| {}));
    let hunted = hunt(*fault, &grounds());
    println!("{}", line(&hunted));
    if let Some(caught) = &hunted.caught {
        println!("{}", caught.detail);
    }
    if hunted.caught.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One walk of a drawn world again, and what it breaks.
fn again(seed: &str, walk: &str) -> ExitCode {
    let parse = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let (Some(seed), Some(walk)) = (parse(seed), parse(walk)) else { return usage() };
    let region = Region::new();
    let task = drawn_task(seed, 1);
    println!("world: {}", task.story);
    let mut world = World::new(&region, task.story.clone());
    let explored = explore::random::random(&mut world, seed.wrapping_add(walk), 1);
    println!("{}", world.tell());
    drop(world);
    match made_small(&region, &task, &explored) {
        None => {
            println!("no promise was broken");
            ExitCode::SUCCESS
        }
        Some(found) => {
            println!("VIOLATION {found}");
            ExitCode::FAILURE
        }
    }
}
