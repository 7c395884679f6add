#!/bin/sh
# Four hospitals train one model without a server: from four CSV files to a page of results, on one machine.
#   sh run.sh              with the patients of UCI Heart Disease
#   sh run.sh --made-up    with patients drawn by chance, if there is no network
# The shell prints each comment and command before it runs it. Real hospitals type the same, each on its own machine.
set -eu
cd "$(dirname "$0")"
if [ -e plan ]; then echo "run.sh: there is a plan already, with a training in it; to begin again: rm -r $PWD/plan" >&2; exit 2; fi
python get_data.py "$@"
each="cleveland hungarian switzerland va"
set -v

# 1. Each hospital adds up its columns and sends the sums, without any row, to the operator (here beside statistics.json).
for site in $each; do netfleet statistics hospitals.toml --site $site --out sums-$site.json & done; wait
netfleet statistics hospitals.toml --merge sums-*.json --out statistics.json

# 2. The operator makes a folder with a certificate for each hospital, and gives it to the hospital.
netfleet plan hospitals.toml --set problem.data.statistics=statistics.json --nodes nodes.toml --out plan

# 3. Each hospital writes down what it allows, whatever a later plan says; every start compares plan and data with it.
for site in $each; do netfleet policy init plan/$site & done; wait

# 4. Before round 1: each hospital tries plan, data, disk and the way to its neighbours and back; the operator predicts
#    hours, bytes and gains.
for site in $each; do netfleet doctor plan/$site --wait 60 & done; wait
netfleet rehearse plan

# 5. Training. Each hospital talks to its two neighbours, over mutual TLS. At a hospital: netfleet node FOLDER
netfleet up plan

# 6. Each hospital trains alone for as long, to compare.
for site in $each; do netfleet node plan/$site --alone & done; wait

# 7. What left a hospital, and whether a neighbour's record says the same.
netfleet receipts verify plan/cleveland --against plan/hungarian

# 8. Did it help? Every model on the test rows of every hospital. At a hospital: netfleet evaluate FOLDER
#    And the prediction beside what happened.
netfleet evaluate plan
netfleet rehearse plan --compare

# The page of results is plan/evaluation.html, that of the rehearsal plan/rehearsal.html. Each hospital's own page is
# plan/NAME/evaluation.html, its model plan/NAME/model.safetensors; the risks of new patients:
#   netfleet predict plan/va/model.safetensors new.csv
