//! scratch
use sidestep_tests::simulation::*;
fn main() {
    let start = std::time::Instant::now();
    let mut tasks = catalogue::small();
    println!("{} small", tasks.len());
    tasks.extend(catalogue::large(1, 200, 500));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let sums = campaign::run(&tasks, &stop, &|n, s| {
        if n % 100 == 0 {
            eprintln!("{n} {} {} {:?}", s.explored.schedules, s.explored.pruned, start.elapsed());
        }
    });
    for found in &sums.found {
        println!("{found}");
    }
    println!("{:#?}", sums.families);
    println!(
        "worlds {} complete {} schedules {} befallen {} crash {} pruned {} counts {:?} {:?}",
        sums.worlds,
        sums.complete,
        sums.explored.schedules,
        sums.explored.befallen,
        sums.explored.crash_points,
        sums.explored.pruned,
        sums.counts,
        start.elapsed()
    );
}
