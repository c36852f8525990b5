//! The name that was probably meant, where one is mistyped. Pure.

/// As near as the command line's own words must be.
const SIMILARITY_LEAST: f64 = 0.7;

/// The one of `names` that is most like `mistyped`, if one is near.
pub fn nearest<'a>(mistyped: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = names.into_iter().map(|name| (strsim::jaro(mistyped, name), name));
    let near = scored.filter(|(similarity, _)| *similarity > SIMILARITY_LEAST);
    near.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant_and_nothing_where_all_is_far() {
        let names = ["default", "orders", "orders-2025"];
        assert_eq!(nearest("ordrs", names), Some("orders"));
        assert_eq!(nearest("Default", names), Some("default"));
        assert_eq!(nearest("xyz", names), None);
        assert_eq!(nearest("orders", []), None);
    }
}
