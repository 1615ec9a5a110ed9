"""The report on a run: one HTML file with parameters, costs, and a check for visible seams.

| module          | what                                                                     |
|-----------------|--------------------------------------------------------------------------|
| `run_report`    | all that the report on a run says, measured                              |
| `volume_planes` | the volumes that a step reads and writes, and images of three planes     |
| `seam_measure`  | differences across the boundaries between tasks, against those inside    |
| `report_page`   | the page, section by section                                             |
| `report_markup` | HTML elements and SVG plots, in which foreign text is escaped            |

Nothing that a run holds is executed, and nothing is changed.
"""
