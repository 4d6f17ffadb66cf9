use super::*;

fn holds(setup: Setup) {
    match check(setup) {
        Ok(worlds) => {
            println!("{} replicas, {} deeds, keeps {}: {worlds} worlds", setup.replicas, setup.deeds, setup.keeps);
            assert!(worlds > 1_000, "only {worlds} worlds: the model lost its steps");
        }
        Err((broken, way)) => panic!("{broken:?} by {way:?} in {setup:?}"),
    }
}

#[test]
fn no_address_ever_leads_to_another_volumes_server() {
    holds(Setup::new(1, 2));
    holds(Setup::new(2, 1));
}

#[test]
fn nor_where_the_ways_to_servers_that_are_gone_are_kept() {
    holds(Setup { keeps: true, ..Setup::new(1, 2) });
    holds(Setup { keeps: true, ..Setup::new(2, 1) });
}

#[test]
fn the_checker_finds_each_mistake() {
    let (one, two) = (Setup::new(1, 2), Setup::new(2, 2));
    let slices = "its slices were read back and lead to its server alone";
    for (defect, setup, expected) in [
        (Defect::WithoutTarget("no other volume has the same endpoint"), one, Broken::Misled),
        (Defect::WithoutTarget("no other volume's address leads there"), one, Broken::Shared),
        (Defect::NoMemory, one, Broken::Shared),
        (Defect::ForgetsRefused, one, Broken::Shared),
        (Defect::NotLate, one, Broken::Shared),
        (Defect::AnyVersion, one, Broken::Shared),
        (Defect::AnyAddress, one, Broken::AddressChanged),
        (Defect::LeftOpen, one, Broken::Forgotten),
        (Defect::WithoutPublication(slices), one, Broken::PublishedNothing),
        (Defect::NoFirstLook, two, Broken::Shared),
        (Defect::NoFence, two, Broken::Shared),
    ] {
        match check(Setup { defect: Some(defect), ..setup }) {
            Ok(worlds) => panic!("nothing was found in {worlds} worlds with {defect:?}"),
            Err((broken, way)) => assert_eq!(broken, expected, "{defect:?} by {way:?}"),
        }
    }
}
