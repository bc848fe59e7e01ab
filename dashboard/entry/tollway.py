"""What `streamlit run` is given: see `dashboard/run.py`.

It stands alone in its folder because Streamlit takes a folder named `pages` beside its script for its old kind of pages: until
the script has run once it lists those files in the navigation and runs the one that is clicked, bare.
"""
from __future__ import annotations

from dashboard.app import main

main()
