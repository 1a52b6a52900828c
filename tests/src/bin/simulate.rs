//! scratch
use sidestep_tests::simulation::*;
fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let start = std::time::Instant::now();
    let all = hunt::hunt_all(&|h| match &h.caught {
        Some(c) => println!(
            "{:28} {:8} {:?} in {} | {}",
            h.fault.name(),
            h.schedules,
            c.promise,
            c.story,
            c.detail.lines().next().unwrap_or("")
        ),
        None => println!("{:28} {:8} NOT CAUGHT; {}", h.fault.name(), h.schedules, h.fault.world()),
    });
    println!("{} of {} {:?}", all.iter().filter(|h| h.caught.is_some()).count(), all.len(), start.elapsed());
}
