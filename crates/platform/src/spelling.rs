//! What somebody probably meant.

/// The known word that was probably meant, if there is one that is close enough not to be a wild guess.
#[must_use]
pub fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    let distance = |word: &str| strsim::damerau_levenshtein(&given.to_lowercase(), &word.to_lowercase());
    let near = known.iter().copied().min_by_key(|word| distance(word))?;
    (distance(near) <= (given.len() / 3).max(1)).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_understood_and_a_wild_guess_is_not_made() {
        let known = ["accessModes", "resources", "storageClassName"];
        assert_eq!(nearest("storageClasName", &known), Some("storageClassName"));
        assert_eq!(nearest("AccessModes", &known), Some("accessModes"));
        assert_eq!(nearest("zzz", &known), None);
        assert_eq!(nearest("", &[]), None);
    }
}
