//! Times as people write them: `90s`, `10m`, `24h`, `500ms`.

use std::time::Duration;

/// A time with its unit.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time: write a whole number with ms, s, m, h or d, such as 90s or 10m");
    let digits = text.find(|character: char| !character.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    let millis = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms)).ok_or_else(wrong)?;
    Ok(Duration::from_millis(millis))
}

/// A time from `least` to `most`.
pub fn within(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let duration = parse(text)?;
    let fits = (least..=most).contains(&duration);
    fits.then_some(duration).ok_or_else(|| format!("give {} to {}", typed(least), typed(most)))
}

/// A time as people type it: in the largest unit of which it is a whole number.
fn typed(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units = [("h", 3_600_000), ("m", 60_000), ("s", 1000)];
    let unit = units.into_iter().find(|(_, unit_ms)| millis > 0 && millis.is_multiple_of(*unit_ms));
    let (unit, unit_ms) = unit.unwrap_or(("ms", 1));
    format!("{}{unit}", millis / unit_ms)
}

/// A time for people, in the two largest units that it has: `1 h 5 min`, `12.3 s`, `4 ms`, `80 µs`.
pub fn shown(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        3600.. => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        60.. => format!("{} min {} s", seconds / 60, seconds % 60),
        1.. => format!("{seconds}.{} s", duration.subsec_millis() / 100),
        0 if duration.as_micros() < 1000 => format!("{} µs", duration.as_micros()),
        0 => format!("{} ms", duration.as_millis()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        for (text, millis) in [("5ms", 5), ("90s", 90_000), ("1m", 60_000), ("24h", 86_400_000), ("1d", 86_400_000)] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "1", "m", "-1s", "1.5h", "1 s", "1min", "99999999999999999999s", "999999999999999999d"] {
            assert!(parse(text).unwrap_err().contains("90s or 10m"), "{text}");
        }
        let day = Duration::from_secs(86_400);
        let refused = within("2d", Duration::from_millis(1), day).unwrap_err();
        assert_eq!(refused, "give 1ms to 24h");
        assert_eq!(within("24h", Duration::from_millis(1), day), Ok(day));
    }

    #[test]
    fn a_time_is_shown_in_its_two_largest_units() {
        for (micros, text) in [
            (0, "0 µs"),
            (80, "80 µs"),
            (4_200, "4 ms"),
            (12_345_678, "12.3 s"),
            (61_000_000, "1 min 1 s"),
            (3_900_000_000, "1 h 5 min"),
        ] {
            assert_eq!(shown(Duration::from_micros(micros)), text);
        }
    }
}
