//! scratch
use sidestep_tests::simulation::explore::{complete::complete, random::random};
use sidestep_tests::simulation::*;
fn main() {
    let region = Region::new();
    let (k, t, n) = (Key::First, Key::Twin, Key::Neighbour);
    let mut fine = true;
    for fine_now in [false, true] {
        for rebuild in [None, Some(Rebuild::One), Some(Rebuild::Two)] {
            for reuses in [false, true] {
                for fillers in [0u8, 29] {
                    fine = fine_now;
                    let story = Story {
                        fine,
                        rebuild,
                        reuses,
                        fillers,
                        first_version: if fillers > 0 { 254 } else { 1 },
                        ..Story::of(vec![
                            vec![put(k), get(k), put(t), put(n)],
                            vec![delete(k), put(k), delete(t), get(t)],
                            vec![get(k), get(t), put(k), delete(n)],
                        ])
                        .after(vec![put(k), put(t), delete(t), put(k)])
                        .with(3, &Befall::ALL)
                    };
                    let start = std::time::Instant::now();
                    let mut world = World::new(&region, story.clone());
                    let e = random(&mut world, 1, 20_000);
                    println!(
                        "random {story} {} {} {:?} {:?}",
                        e.schedules,
                        e.befallen,
                        start.elapsed(),
                        world.counts
                    );
                    if let Some(f) = &e.failure {
                        drop(world);
                        let (s, f) = shrink(&region, &story, f);
                        let mut world = World::new(&region, s.clone());
                        let _ = explore::replay(&mut world, f.seed.unwrap_or(0), &f.schedule);
                        println!("FAIL {s}\n{}\n{:?}\n{}", f.violation, f.schedule, world.tell());
                    }
                }
            }
        }
    }
    let _ = (fine, complete);
}
