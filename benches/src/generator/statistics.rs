//! Yardsticks of the generators' tests.

/// Asserts Pearson's chi-square test at p > 0.001. Items that are expected fewer than ten times are pooled.
#[track_caller]
pub(crate) fn chi_square_passes(seen: &[u64], expected: &[f64]) {
    let draws = seen.iter().sum::<u64>() as f64;
    let (mut statistic, mut cells) = (0.0, 0u64);
    let (mut pooled_seen, mut pooled_expected) = (0.0, 0.0);
    for (count, probability) in seen.iter().zip(expected) {
        pooled_seen += *count as f64;
        pooled_expected += probability * draws;
        if pooled_expected >= 10.0 {
            statistic += (pooled_seen - pooled_expected).powi(2) / pooled_expected;
            cells += 1;
            (pooled_seen, pooled_expected) = (0.0, 0.0);
        }
    }
    let limit = chi_square_limit(cells.saturating_sub(1));
    assert!(statistic < limit, "chi-square {statistic:.1} over {cells} cells exceeds {limit:.1} (p < 0.001)");
}

/// The value that chi-square exceeds once in a thousand times (Wilson and Hilferty's approximation).
fn chi_square_limit(freedom: u64) -> f64 {
    let freedom = freedom as f64;
    let ninth = 2.0 / (9.0 * freedom);
    freedom * (1.0 - ninth + 3.0902 * ninth.sqrt()).powi(3)
}

/// Asserts that the `top` likeliest items were drawn as often as expected, within `tolerance` (a fraction).
#[track_caller]
pub(crate) fn top_within(seen: &[u64], expected: &[f64], top: usize, tolerance: f64) {
    let draws = seen.iter().sum::<u64>() as f64;
    let mut order: Vec<usize> = (0..expected.len()).collect();
    order.sort_by(|a, b| expected[*b].total_cmp(&expected[*a]));
    for (rank, item) in order.into_iter().take(top).enumerate() {
        let ratio = seen[item] as f64 / (expected[item] * draws);
        assert!(
            (ratio - 1.0).abs() < tolerance,
            "item {item}, rank {rank}: drawn {ratio:.4} times its share"
        );
    }
}

#[test]
fn the_yardstick_rejects_a_bent_distribution() {
    // Half a percent more of one item in two, over a million draws, is ten standard deviations.
    let caught = std::panic::catch_unwind(|| chi_square_passes(&[505_000, 495_000], &[0.5, 0.5]));
    assert!(caught.is_err());
    chi_square_passes(&[500_300, 499_700], &[0.5, 0.5]);
    assert!((chi_square_limit(10) - 29.59).abs() < 0.3);
    assert!((chi_square_limit(100) - 149.4).abs() < 0.5);
}
