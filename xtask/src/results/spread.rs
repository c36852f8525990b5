//! A figure of some turns: the median, and the quartiles as spread.

use serde::{Deserialize, Serialize};

/// Digits that are kept of a figure. Turns differ by more than the rest.
const DIGITS_KEPT: i32 = 6;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Spread {
    pub low: f64,
    pub median: f64,
    pub high: f64,
    /// Turn by turn, without those of which there is no figure.
    #[serde(default)]
    pub turns: Vec<f64>,
}

impl Spread {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let turns: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).map(rounded).collect();
        let mut sorted = turns.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        let at = |place: usize| sorted.get(place).copied().unwrap_or(0.0);
        Spread { low: at(last / 4), median: at(last / 2), high: at(last - last / 4), turns }
    }

    /// A figure of one turn, or one that was not measured in turns.
    pub fn once(value: f64) -> Spread {
        Spread::of([value])
    }

    /// The median, with the quartiles where there are some.
    pub fn shown(&self) -> String {
        let Spread { low, median, high, turns } = self;
        match turns.len() {
            1 => shown(*median),
            _ => format!("{} ({}–{})", shown(*median), shown(*low), shown(*high)),
        }
    }
}

fn rounded(value: f64) -> f64 {
    if value == 0.0 {
        return value;
    }
    let power = DIGITS_KEPT - 1 - value.abs().log10().floor() as i32;
    match power {
        0.. => (value * 10_f64.powi(power)).round() / 10_f64.powi(power),
        _ => value.round(),
    }
}

/// With three digits or so, and large numbers in groups of three.
pub fn shown(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{}{}", if value < 0.0 { "-" } else { "" }, grouped(v.round() as u64)),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

/// Digits in threes.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_median_and_the_quartiles() {
        let spread = Spread::of([5.0, 1.0, 2.0, 4.0, 3.0, f64::NAN]);
        assert_eq!((spread.low, spread.median, spread.high), (2.0, 3.0, 4.0));
        assert_eq!(spread.shown(), "3.00 (2.00–4.00)");
        let of_three = Spread::of([3.0, 1.0, 2.0]);
        assert_eq!((of_three.low, of_three.median, of_three.high), (1.0, 2.0, 3.0));
        assert_eq!(Spread::of([]).median, 0.0);
        assert_eq!(Spread::once(1234567.4).shown(), "1,234,567");
    }

    #[test]
    fn digits_stand_in_threes() {
        assert_eq!([7, 999, 1000, 1_234_567].map(grouped), ["7", "999", "1,000", "1,234,567"]);
        assert_eq!(shown(-1500.4), "-1,500");
    }

    #[test]
    fn a_spread_comes_back_from_its_json() {
        let spread = Spread::of([0.123_456_789, 1e9, 3.0]);
        let back: Spread = serde_json::from_str(&serde_json::to_string(&spread).unwrap()).unwrap();
        assert_eq!((back.median, back.turns), (3.0, vec![0.123_457, 1e9, 3.0]));
        assert!(serde_json::from_str::<Spread>("{}").is_err());
    }
}
