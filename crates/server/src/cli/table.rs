//! Tables of text: columns as wide as their longest cells, and two spaces between them.

/// Names of columns, and a line for each row; nothing if there are no rows.
pub fn table<const N: usize>(names: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let lines: Vec<[String; N]> = std::iter::once(names.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |cells: &[String; N]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    if lines.len() == 1 { String::new() } else { lines.iter().map(line).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_cells() {
        let rows = [["1", "ä"], ["20", "b"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(["id", "owner"], rows.into_iter()), "id  owner\n1   ä\n20  b\n");
        assert_eq!(table(["id"], std::iter::empty()), "");
    }
}
