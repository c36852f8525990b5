//! `generate packages`: the packages of a Debian machine and their dependencies, read from dpkg's status file.
//!
//! Packages are numbered in the order of their names. A dependency on a package that the machine does not have is left out; of
//! alternatives, all that it has count. A virtual package stands for the packages that provide it.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::Path;

use super::papers::ShowItem;

/// A table, and a keyspace for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PackageTable {
    Packages,
    /// Which package needs which
    Dependencies,
}

impl PackageTable {
    pub const ALL: [PackageTable; 2] = [PackageTable::Packages, PackageTable::Dependencies];

    pub fn name(self) -> &'static str {
        match self {
            PackageTable::Packages => "packages",
            PackageTable::Dependencies => "dependencies",
        }
    }

    /// The format of its keys and values.
    pub fn format_text(self) -> &'static str {
        match self {
            PackageTable::Packages => {
                "key: id u32be; value: kilobytes u32le, name string8, section string8, version string"
            }
            PackageTable::Dependencies => "key: package u32be, needs u32be; value: how string",
        }
    }
}

#[derive(Default)]
struct Package {
    kilobytes: u32,
    section: String,
    version: String,
    /// The kind of the relation, and the name of a package.
    needs: Vec<(&'static str, String)>,
}

pub struct PackageDatabase {
    packages: BTreeMap<String, Package>,
    /// The packages that provide each virtual package.
    provided: BTreeMap<String, BTreeSet<String>>,
}

impl PackageDatabase {
    pub fn read(path: &Path) -> Result<PackageDatabase, String> {
        let bytes = fs::read(path).map_err(|error| {
            format!(
                "cannot read {}: {error}; say with --from where a Debian machine keeps its packages",
                path.display()
            )
        })?;
        let database = PackageDatabase::parse(&String::from_utf8_lossy(&bytes));
        match database.packages.is_empty() {
            true => Err(format!("{} lists no packages that are installed", path.display())),
            false => Ok(database),
        }
    }

    fn parse(text: &str) -> PackageDatabase {
        let mut database = PackageDatabase { packages: BTreeMap::new(), provided: BTreeMap::new() };
        text.split("\n\n").for_each(|paragraph| database.take(paragraph));
        database
    }

    fn take(&mut self, paragraph: &str) {
        let (mut name, mut package, mut provides) = (None, Package::default(), Vec::new());
        let mut is_installed = false;
        for line in paragraph.lines().filter(|line| !line.starts_with([' ', '\t'])) {
            let Some((field, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            match field {
                "Package" => name = Some(value.to_owned()),
                "Status" => is_installed = value.ends_with(" installed"),
                "Installed-Size" => package.kilobytes = value.parse().unwrap_or(0),
                "Section" if value.len() <= u8::MAX.into() => package.section = value.into(),
                "Version" => package.version = value.into(),
                "Depends" => package.needs.extend(names(value).map(|name| ("depends", name))),
                "Pre-Depends" => package.needs.extend(names(value).map(|name| ("pre-depends", name))),
                "Provides" => provides.extend(names(value)),
                _ => {}
            }
        }
        let Some(name) = name.filter(|name| is_installed && !name.is_empty() && name.len() <= u8::MAX.into()) else {
            return;
        };
        for virtual_name in provides {
            self.provided.entry(virtual_name).or_default().insert(name.clone());
        }
        self.packages.insert(name, package);
    }

    /// Gives the items of a table to `show`, in the order of their keys.
    pub fn each(&self, table: PackageTable, show: ShowItem<'_>) -> Result<(), Box<dyn Error>> {
        let numbers: BTreeMap<&str, u32> = self.packages.keys().map(String::as_str).zip(0..).collect();
        for ((name, package), number) in self.packages.iter().zip(0u32..) {
            match table {
                PackageTable::Packages => {
                    let mut value = package.kilobytes.to_le_bytes().to_vec();
                    for text in [name, &package.section] {
                        value.push(text.len() as u8);
                        value.extend_from_slice(text.as_bytes());
                    }
                    value.extend_from_slice(package.version.as_bytes());
                    show(number.to_be_bytes().to_vec(), value)?;
                }
                PackageTable::Dependencies => {
                    for (needed, how) in self.needed(package, &numbers) {
                        show([number.to_be_bytes(), needed.to_be_bytes()].concat(), how.into())?;
                    }
                }
            }
        }
        Ok(())
    }

    fn needed(&self, package: &Package, numbers: &BTreeMap<&str, u32>) -> BTreeMap<u32, &'static str> {
        let mut needed = BTreeMap::new();
        for (how, name) in &package.needs {
            let standing_for = self.provided.get(name).into_iter().flatten().map(String::as_str);
            let all = std::iter::once(name.as_str()).chain(standing_for);
            for number in all.filter_map(|name| numbers.get(name)) {
                needed.entry(*number).or_insert(*how);
            }
        }
        needed
    }
}

/// The names in a list such as `a (>= 1), b | c:any`.
fn names(list: &str) -> impl Iterator<Item = String> {
    let name = |text: &str| {
        let end = text.find([' ', '(', ':', '[']).unwrap_or(text.len());
        text[..end].to_owned()
    };
    list.split([',', '|'])
        .map(move |text| name(text.trim()))
        .filter(|name| !name.is_empty())
        .collect::<Vec<_>>()
        .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tapetum_kernels::scan::{FieldReader, Format};

    const STATUS: &str = "Package: b\nStatus: install ok installed\nInstalled-Size: 7\nSection: libs\nVersion: 1.2-3\nProvides: mail (= 1)\n\n\
        Package: a\nStatus: install ok installed\nPre-Depends: b:any (>= 1)\nDepends: missing | c (>= 2), mail\nDescription: an a\n continues: here\n\n\
        Package: gone\nStatus: deinstall ok config-files\n\n\
        Package: c\nStatus: install ok installed\nDepends: mail\nVersion: 9\n";

    fn items(table: PackageTable) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut items = Vec::new();
        let shown = PackageDatabase::parse(STATUS).each(table, &mut |key, value| {
            items.push((key, value));
            Ok(())
        });
        shown.unwrap();
        items
    }

    #[test]
    fn packages_are_numbered_by_name_and_need_each_other() {
        for table in PackageTable::ALL {
            let fields = FieldReader::new(&Format::parse(table.format_text()).unwrap());
            assert!(items(table).iter().all(|(key, value)| fields.check(key, value) == Ok(())), "{table:?}");
        }
        let packages = items(PackageTable::Packages);
        assert_eq!(packages.len(), 3);
        assert_eq!(packages[1], (vec![0, 0, 0, 1], b"\x07\0\0\0\x01b\x04libs1.2-3".to_vec()));
        let edge = |from: u8, to: u8, how: &str| (vec![0, 0, 0, from, 0, 0, 0, to], how.as_bytes().to_vec());
        let expected = [edge(0, 1, "pre-depends"), edge(0, 2, "depends"), edge(2, 1, "depends")];
        assert_eq!(items(PackageTable::Dependencies), expected);
    }
}
