"""The report on a run: one HTML file with parameters, costs, and a check for visible seams.

| module          | content                                                                  |
|-----------------|--------------------------------------------------------------------------|
| `run_report`    | collection of all measurements that a report shows                       |
| `volume_planes` | images of three planes of each volume that a step reads and writes       |
| `seam_measure`  | measure of seams: intensity steps across task boundaries                 |
| `report_page`   | the HTML page, section by section                                        |
| `report_markup` | HTML elements and SVG plots; text from the run is escaped                |

A report does not execute code from the run, and does not change the run.
"""
