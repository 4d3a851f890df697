# The general form: whatever has the names that b2fuse uses in somebody else's directory, before it comes or while it works.

# shellcheck source=common.bash
. "$SECURITY/common.bash"

matrix() { "$PY" "$SECURITY/matrix.py" "$@"; }

test_squats_read_of_a_file() { matrix squats cframe read; }
test_squats_read_late_of_a_file() { matrix squats cframe read_late; }
test_squats_write_of_a_file() { matrix squats cframe write; }
test_squats_write_late_of_a_file() { matrix squats cframe write_late; }
test_squats_lost_of_a_file() { matrix squats cframe lost; }
test_squats_create_of_a_file() { matrix squats cframe create; }
test_squats_info_of_a_file() { matrix squats cframe info; }
test_squats_ls_of_a_file() { matrix squats cframe ls; }
test_squats_cat_of_a_file() { matrix squats cframe cat; }
test_squats_check_of_a_file() { matrix squats cframe check; }
test_squats_repair_of_a_file() { matrix squats cframe repair; }
test_squats_compact_of_a_file() { matrix squats cframe compact; }
test_squats_convert_of_a_file() { matrix squats cframe convert; }
test_squats_convert_force_of_a_file() { matrix squats cframe convert_force; }
test_squats_read_of_a_directory() { matrix squats sframe read; }
test_squats_read_late_of_a_directory() { matrix squats sframe read_late; }
test_squats_write_of_a_directory() { matrix squats sframe write; }
test_squats_write_late_of_a_directory() { matrix squats sframe write_late; }
test_squats_lost_of_a_directory() { matrix squats sframe lost; }
test_squats_info_of_a_directory() { matrix squats sframe info; }
test_squats_ls_of_a_directory() { matrix squats sframe ls; }
test_squats_cat_of_a_directory() { matrix squats sframe cat; }
test_squats_check_of_a_directory() { matrix squats sframe check; }
test_squats_repair_of_a_directory() { matrix squats sframe repair; }
test_squats_compact_of_a_directory() { matrix squats sframe compact; }
test_squats_convert_of_a_directory() { matrix squats sframe convert; }
test_squats_convert_force_of_a_directory() { matrix squats sframe convert_force; }

test_storm_read_of_a_file() { matrix storm cframe read; }
test_storm_write_of_a_file() { matrix storm cframe write; }
test_storm_lost_of_a_file() { matrix storm cframe lost; }
test_storm_repair_of_a_file() { matrix storm cframe repair; }
test_storm_compact_of_a_file() { matrix storm cframe compact; }
test_storm_convert_of_a_file() { matrix storm cframe convert; }
test_storm_convert_force_of_a_file() { matrix storm cframe convert_force; }
test_storm_create_of_a_file() { matrix storm cframe create; }
test_storm_look_at_a_file() { matrix storm cframe info ls cat check; }
test_storm_read_of_a_directory() { matrix storm sframe read; }
test_storm_write_of_a_directory() { matrix storm sframe write; }
test_storm_lost_of_a_directory() { matrix storm sframe lost; }
test_storm_repair_of_a_directory() { matrix storm sframe repair; }
test_storm_compact_of_a_directory() { matrix storm sframe compact; }
test_storm_convert_of_a_directory() { matrix storm sframe convert; }
test_storm_convert_force_of_a_directory() { matrix storm sframe convert_force; }
test_storm_look_at_a_directory() { matrix storm sframe info ls cat check; }
