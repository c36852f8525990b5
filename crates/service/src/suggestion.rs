//! The name that was probably meant, where one is mistyped. Pure.

/// As near as the command line's own words must be.
const SIMILARITY_LEAST: f64 = 0.7;

/// The one of `names` that is most like `mistyped`, if one is near: short names count as near at one slip of the fingers.
pub fn nearest<'a>(mistyped: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = names.into_iter().map(|name| (is_one_slip(mistyped, name), strsim::jaro(mistyped, name), name));
    let near = scored.filter(|(is_slip, similarity, _)| *is_slip || *similarity > SIMILARITY_LEAST);
    near.max_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1))).map(|(.., name)| name)
}

/// Whether one letter is missing, too many or wrong, or two stand in the wrong order. Names of one letter are all alike then, and not near.
pub fn is_one_slip(mistyped: &str, name: &str) -> bool {
    name.len() > 1 && strsim::osa_distance(mistyped, name) == 1
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

    #[test]
    fn one_slip_in_a_short_name_is_near_and_nearer_than_a_likeness() {
        assert_eq!(nearest("lgo", ["long", "log", "limit"]), Some("log"));
        assert_eq!(nearest("ot", ["to", "top"]), Some("to"));
        assert_eq!(nearest("rn", ["run"]), Some("run"));
        assert_eq!(nearest("b", ["a"]), None);
        assert_eq!(nearest("creat", ["format", "rename", "create"]), Some("create"));
    }
}
