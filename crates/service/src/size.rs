//! Sizes as people write them: `10GiB`, `256MiB`, `64k`, `1MB`, plain bytes.

/// A number of bytes. k, m, g, t and p alone are binary, as in most servers' options; `kB`, `MB` … are decimal.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("{text:?} is not a size: write bytes, or a number with KiB, MiB, GiB, TiB or PiB, such as 256MiB");
    let digits = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let (power, base) = match unit.as_str() {
        "" | "b" => (0, 1024),
        "k" | "ki" | "kib" => (1, 1024),
        "m" | "mi" | "mib" => (2, 1024),
        "g" | "gi" | "gib" => (3, 1024),
        "t" | "ti" | "tib" => (4, 1024),
        "p" | "pi" | "pib" => (5, 1024),
        "kb" => (1, 1000),
        "mb" => (2, 1000),
        "gb" => (3, 1000),
        "tb" => (4, 1000),
        "pb" => (5, 1000),
        _ => return Err(wrong()),
    };
    let unit_bytes = u64::pow(base, power);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.parse::<u64>().map_err(|_| wrong())?.checked_mul(unit_bytes).ok_or_else(wrong)?;
    if fraction.is_empty() {
        return if number.ends_with('.') { Err(wrong()) } else { Ok(whole) };
    }
    if fraction.len() > 6 || power == 0 {
        return Err(wrong());
    }
    let part = fraction.parse::<u64>().map_err(|_| wrong())?;
    let scale = 10u64.pow(fraction.len() as u32);
    let part = u128::from(part) * u128::from(unit_bytes) / u128::from(scale);
    u64::try_from(part).ok().and_then(|part| whole.checked_add(part)).ok_or_else(wrong)
}

/// A number of bytes from `least` to `most`.
pub fn within(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let bytes = parse(text)?;
    let fits = (least..=most).contains(&bytes);
    fits.then_some(bytes).ok_or_else(|| format!("give {} to {}", typed(least), typed(most)))
}

/// Bytes as people type them: in the largest binary unit of which they are a whole number.
pub fn typed(bytes: u64) -> String {
    let units = ["", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = if bytes == 0 { 0 } else { bytes.trailing_zeros() as usize / 10 };
    format!("{}{}", bytes >> (10 * power), units[power])
}

/// A limit as people type it, never more than it is: to a hundredth of the unit, rounded down.
pub fn at_most(bytes: u64) -> String {
    let units = ["", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = bytes.checked_ilog2().unwrap_or(0) as usize / 10;
    let hundredths = (u128::from(bytes) * 100) >> (10 * power);
    let (whole, fraction) = (hundredths / 100, format!(".{:02}", hundredths % 100));
    format!("{whole}{}{}", fraction.trim_end_matches('0').trim_end_matches('.'), units[power])
}

/// A number for people, its thousands apart.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Bytes for people: in the largest binary unit that leaves no more than three digits before the point.
pub fn shown(bytes: u64) -> String {
    let (number, unit) = tapetum_drive::Size(bytes).parts();
    format!("{number} {}", if unit.is_empty() { "bytes" } else { unit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("64k", 64 << 10),
            ("256MiB", 256 << 20),
            ("10GiB", 10 << 30),
            ("10 GiB", 10 << 30),
            ("1.5g", 3 << 29),
            ("2MB", 2_000_000),
            ("1TiB", 1 << 40),
            ("8PiB", 8 << 50),
            ("0.5p", 1 << 49),
            ("7B", 7),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "x", "MiB", "-1", "1.", "1.5", "1.0000001g", "1xb", "99999999999999999999", "99999999999TiB", "1e9"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_out_of_range_is_refused_with_the_range() {
        assert_eq!(within("1KiB", 1 << 10, 16 << 20), Ok(1 << 10));
        assert_eq!(within("16MiB", 1 << 10, 16 << 20), Ok(16 << 20));
        for text in ["0", "1023", "16777217"] {
            assert_eq!(within(text, 1 << 10, 16 << 20), Err("give 1KiB to 16MiB".into()), "{text}");
        }
    }

    #[test]
    fn what_people_type_reads_as_it_was() {
        for (bytes, text) in
            [(0, "0"), (1000, "1000"), (1536, "1536"), (64 << 10, "64KiB"), (14 << 30, "14GiB"), (8 << 50, "8PiB")]
        {
            assert_eq!(typed(bytes), text);
            assert_eq!(parse(text), Ok(bytes));
        }
    }

    #[test]
    fn a_limit_is_never_said_to_be_more_than_it_is() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1 << 20, "1MiB"),
            ((8 << 20) - 1, "7.99MiB"),
            (8 << 20, "8MiB"),
            (3_774_873, "3.59MiB"),
            (3 << 29, "1.5GiB"),
            ((1 << 30) + (1 << 20), "1GiB"),
            (u64::MAX, "15.99EiB"),
        ] {
            assert_eq!(at_most(bytes), text);
        }
        for bytes in (1..1_000_000_000).step_by(999_983) {
            let read = parse(&at_most(bytes)).unwrap();
            assert!(read <= bytes && bytes - read <= bytes / 64, "{bytes}");
        }
    }

    #[test]
    fn thousands_stand_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (400_000, "400,000"), (1_234_567, "1,234,567")]
        {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn shows_what_people_read() {
        assert_eq!(shown(0), "0 bytes");
        assert_eq!(shown(1536), "1.5 KiB");
        assert_eq!(shown(10 << 30), "10 GiB");
        // A store of that capacity, which leaves the file system its share.
        assert_eq!(shown(tapetum::store_bytes(14 << 30)), "14 GiB");
    }
}
